// Convolution of stride 1 as one matrix product whose left operand, the weight of few channels, stays in shared memory
// for all tiles of a block, and whose right one for all taps: y[m, k] = f(sum over taps and c of w[k, tap, c] * x[m +
// tap, c] + bias[k] + residual[m, k]).
//
// Layout:  x channels-last in memory, behind a tensor map of windows of one pixel whose corners make a raster of each
//          plane, as in implicit_tma_halo_sm90.cu: every tap is a shift, and the places of a tile need `reach` more of
//          the input, one box. w (groups K, window, C) behind a tiled map; kTransposed: the gradient of the input from
//          the forward's weight. A block takes the tiles of one column of channels, 64 channels x 128 places each, two
//          or three warpgroups by turns; channels are the rows of the products (swapped_tile.cuh). Each begins when the
//          one before it has asked for its products, so that some multiply while others write: from a panel in shared
//          memory, in the place of the residual or of the input that has been used up, by rows, since TMA stores no
//          places outside of an array. One thread of the first warpgroup asks for the weight, once, and for the input
//          (a ring of kStages); one more for each of the others brings the residual, not before the weight is there.
// Needs:   sm_90a; half types; at most 64 channels of the sum, in one plane; channels of a group multiples of 64 where
//          there are several groups; strides of x, w and y multiples of 16 bytes; padding less than the window's reach;
//          fewer than 2^31 places.
// Bound:   the tensor cores, and shared memory, which the products ask for 96 of its 128 bytes a cycle. Sums in
//          float32.

#include "dnnarray/core/activation.cuh"
#include "conv/raster.cuh"
#include "conv/swapped_tile.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 256;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 4;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
  static constexpr int kSets = 1;
  static constexpr int kFirst = 0;
};
struct Arguments {
  dnnarray::TensorMap x;
  dnnarray::TensorMap weight;
  dnnarray::TensorMap residual_map;
  long long images;
  long long pitch;
  long long by_pitch;
  long long height;
  long long by_height;
  long long by_plane;
  int reach;
  int channels;
  int backwards;
  int tiles_m;
  int tiles_n;
  int groups;
  int outs;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_implicit_tma_held_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Panels = TmaPanels<Config>;
using Swapped = SwappedTile<Config>;
using T = Config::Element;
using R = Config::Result;
using Operands = OnRaster<T, R>;
constexpr bool kBrought = Config::kResidual;
constexpr int kTileN = Config::kTileN, kInputs = Config::kStages, kTurns = C::kConsumers,
              kOwn = Config::kTileM / kTurns;  // places of a tile
constexpr int kReaders =
    kBrought ? 1 : Panels::kWarps;  // who give an input back: results without a residual leave by way of it
static_assert(kTurns > 1, "warpgroups take turns");

extern __shared__ char smem_memory[];

// Where things lie in shared memory: the weight, the ring of inputs, the residual, the barriers.
struct Shared {
  unsigned weight, input, input_bytes, rows, panels, full, empty, held, turns, panel_barriers;

  __device__ __forceinline__ Shared(unsigned first, int taps, int reach) : weight(first), rows(kOwn + reach) {
    input_bytes = (rows * C::kRow + 1023) & ~1023u;
    input = weight + taps * C::kBytesN;
    panels = input + kInputs * input_bytes;
    full = panels + (kBrought ? Panels::kBytes : 0);
    empty = full + kInputs * 8;
    held = empty + kInputs * 8;
    turns = held + 8;
    panel_barriers = turns + (kTurns - 1) * 8;
  }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2 * kInputs + kTurns; ++i)
      mbarrier_init(full + i * 8, i >= kInputs && i < 2 * kInputs ? kReaders : 1);
    if (kBrought) Panels::init(panel_barriers);
    fence_mbarrier_init();
  }
};

// The tiles of a block: every `step`th of a column of `count`.
struct Column {
  TmaPlace place;
  int first, step, count;

  __device__ __forceinline__ Column(int tiles_m, int tiles_n, int groups) : count(tiles_m) {
    const int columns = tiles_n * groups, column = static_cast<int>(blockIdx.x) % columns;
    place = {0, column % tiles_n * kTileN, column / tiles_n};
    first = blockIdx.x / columns, step = gridDim.x / columns;
  }

  __device__ __forceinline__ int tiles() const { return first < count ? (count - first - 1) / step + 1 : 0; }
  __device__ __forceinline__ bool has(int i) const { return first + i * step < count; }
  __device__ __forceinline__ TmaPlace operator[](int i) const {
    return {static_cast<long long>(first + i * step) * kOwn, place.n, place.group};
  }
};

__device__ __forceinline__ void ask(const Operands& a, const TensorMap& x, const TensorMap& weight,
                                    const Column& column, const Shared& smem) {
  mbarrier_arrive_expect_tx(smem.held, a.axes.h.window * a.axes.w.window * C::kBytesN);
  Place tap = {0, 0, 0};
  unsigned to = smem.weight;
  do {
    C::ask_weight(a.weight, weight, column.place, tap, 0, a.target.outs, to, smem.held);
    to += C::kBytesN;
  } while (!tap.next(1, a.axes.h.window, a.axes.w.window));
  Ring<kInputs> ring;
  for (int i = 0; column.has(i); ++i) {
    const unsigned full = smem.full + ring.stage * 8;
    mbarrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
    mbarrier_arrive_expect_tx(full, smem.rows * C::kRow);
    WindowPlace place = a.begins(column[i].m);
    place.c = column.place.group * a.weight.channels;
    tma_load_im2col<Config::kAxes>(smem.input + ring.stage * smem.input_bytes, x, full, place, TapPlace{0, 0, 0});
    ring.next();
  }
}

// Issues the products of all taps; they run on.
__device__ __forceinline__ void multiply(const Operands& a, Swapped::Sums& sums, unsigned input, unsigned weight) {
  for (int r = 0; r < a.axes.h.window; ++r)
    for (int s = 0; s < a.axes.w.window; ++s, weight += C::kBytesN)
      Swapped::multiply(sums, input + a.shift(r, s) * C::kRow, weight);
}

// The result in the place of the residual or, where there is none, of the input, which no warp is multiplying any more,
// and from there to memory.
__device__ __forceinline__ void write(const Operands& a, Swapped::Sums& sums, const TmaPlace& tile,
                                      const Swapped::Rows& rows, unsigned panel) {
  const int group = 1 + static_cast<int>(threadIdx.x) / C::kGroup;
  if constexpr (kBrought) {
    Swapped::add(sums, panel);
  } else {
    bar_sync<128>(group);
  }
  Swapped::fill(a.target, sums, panel);
  bar_sync<128>(group);
  Swapped::write(a.target, tile, rows, smem_memory + (panel - shared_address(smem_memory)));
  fence_proxy_async();
}

// The tiles of one of the warpgroups: every kTurns-th one of the block. Who asks for products waits until nearly all of
// them are done, so where results go is found before.
__device__ __forceinline__ void multiply_tiles(const Operands& a, const Column& column, int part, const Shared& smem,
                                               Panels& own) {
  Swapped::Sums sums;
  const Swapped::Bias bias(a.target, column.place);
  mbarrier_wait(smem.held, 0);
  for (int i = part; column.has(i); i += kTurns) {
    const int stage = i % kInputs;
    const unsigned input = smem.input + stage * smem.input_bytes, empty = smem.empty + stage * 8;
    const TmaPlace tile = column[i];
    const Swapped::Rows rows(tile, a);
    Swapped::clear(sums);
    mbarrier_wait(smem.full + stage * 8, i / kInputs & 1);
    if (i > 0 && i < kTurns) mbarrier_wait(smem.turns + (i - 1) * 8, 0);
    multiply(a, sums, input, smem.weight);
    if (i < kTurns - 1) C::release(smem.turns + i * 8);
    Swapped::finish(sums);
    if constexpr (kBrought) C::release(empty);
    bias.add(sums);
    write(a, sums, tile, rows, kBrought ? own.brought() : input);
    if constexpr (kBrought) {
      own.let_go();
    } else {
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
    }
  }
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  y = after_previous_kernel(y);  // the operands are there, too
  const Operands operands = on_raster(target_of(bias, residual, y, a), a);
  const Shared smem((shared_address(smem_memory) + 1023) & ~1023u, a.axes.h.window * a.axes.w.window, operands.reach);
  const char* panels = smem_memory + (smem.panels - shared_address(smem_memory));
  if (threadIdx.x == 0) smem.init();
  __syncthreads();
  const Column column(a.tiles_m, a.tiles_n, a.groups);
  const int part = warpgroup() - 1;
  if (part < 0) {
    setmaxnreg_dec<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(a.x);
      prefetch_tensormap(a.weight);
      ask(operands, a.x, a.weight, column, smem);
    } else if (kBrought && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= C::kConsumers) {
      const int whose = static_cast<int>(threadIdx.x) / 32 - 1;
      Panels carried(panels, smem.panel_barriers, whose, 0);
      const auto tile = [&](int i) { return column[kTurns * i + whose]; };
      mbarrier_wait(smem.held, 0);
      carried.carry<false>(a.residual_map, a.residual_map, (column.tiles() + kTurns - 1 - whose) / kTurns, tile,
                           operands.target.outs, operands);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::kMore>();
    Panels own(panels, smem.panel_barriers, part, 0);
    multiply_tiles(operands, column, part, smem, own);
  }
}
