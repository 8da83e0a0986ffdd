// Convolution of stride 1 as one matrix product whose left operand stays in shared memory for all taps of a plane: y[m,
// k] = f(sum over taps and c of x[m + tap, c] * w[k, tap, c] + bias[k] + residual[m, k]).
//
// Layout:  x channels-last in memory, behind a tensor map of windows of one pixel whose corners make a raster of each
//          plane: rows of `pitch` places, `height` rows, zeros where the plane ends, shared by what stands on either
//          side of them. Then every tap along the last two axes is a shift, and kTileM neighbouring places of the
//          output need kTileM + reach places of the input, one box. Places behind the end of a row or a plane are
//          computed for nothing. w (groups K, window, C) behind a tiled map; kTransposed: the gradient of the input
//          from the forward's weight, whose dense channels are those of the result here. A block takes tiles of kTileM
//          places x kTileN channels, one after another. One thread of the first warpgroup asks for the input of 64
//          channels and a tap along the first axis (two buffers) and the weights of the taps there (a ring of kStages).
//          The others multiply, each some of the tile's rows, and write them from registers, since TMA stores no places
//          outside of an array. It brings them as zeros, so a residual of half types comes by it while the products
//          run: an epilogue thread for each warpgroup asks for it, at first when nearly half of a tile's operands have
//          been asked for, or it would stand before those that somebody waits for. float32 as in implicit_tma_sm90.cu.
// Needs:   sm_90a; channels of a group multiples of 64 where there are several groups; strides of x, w and y multiples
//          of 16 bytes; padding less than the window's reach; fewer than 2^31 places.
// Bound:   the tensor cores. Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "conv/panels.cuh"
#include "conv/raster.cuh"
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
  static constexpr int kStages = 8;
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
  long long tiles_m;
  long long tiles_n;
  long long groups;
  int outs;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_implicit_tma_halo_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Panels = TmaPanels<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr bool kBrought = Config::kResidual && Panels::kStaged;
constexpr bool kAhead =
    kBrought && C::kMmas * Panels::kPanels <= 2;  // there are registers for a residual beside the sums
using Operands = OnRaster<T, R>;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;

extern __shared__ char smem_memory[];

// Where things lie in shared memory: two input buffers, the ring of weights, the residual, the barriers; `half`
// completes once half of the weights of the first tile's planes but for the last have been asked for.
struct Shared {
  unsigned input, input_bytes, rows, weight, panels, input_full, input_empty, full, empty, half, panel_barriers;

  __device__ __forceinline__ Shared(unsigned first, int reach) : input(first), rows(kTileM + reach) {
    input_bytes = (rows * C::kRow + 1023) & ~1023u;
    weight = input + 2 * input_bytes;
    panels = weight + kStages * C::kBytesN;
    input_full = panels + (kBrought ? Panels::kBytes : 0);
    input_empty = input_full + 16;
    full = input_empty + 16;
    empty = full + kStages * 8;
    half = empty + kStages * 8;
    panel_barriers = half + 8;
  }
};

__device__ __forceinline__ void ask_tile(const Operands& a, const TensorMap& x, const TensorMap& weight,
                                         const TmaPlace& tile, const Shared& smem, Ring<2>& inputs, Ring<kStages>& ring,
                                         int& early) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  WindowPlace place = a.begins(tile.m);
  for (int t = 0; t < d.window; ++t) {
    const TapPlace offset = {0, 0, static_cast<unsigned short>(t * d.dilation)};
    for (int c = 0; c < a.weight.channels; c += C::kTileK) {
      const unsigned full = smem.input_full + inputs.stage * 8;
      mbarrier_wait(smem.input_empty + inputs.stage * 8, inputs.parity ^ 1);
      mbarrier_arrive_expect_tx(full, smem.rows * C::kRow);
      place.c = tile.group * a.weight.channels + c;
      tma_load_im2col<Config::kAxes>(smem.input + inputs.stage * smem.input_bytes, x, full, place, offset);
      inputs.next();
      Place tap = {0, 0, 0};
      do {
        const unsigned arrived = smem.full + ring.stage * 8;
        mbarrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
        mbarrier_arrive_expect_tx(arrived, C::kBytesN);
        C::ask_weight(a.weight, weight, tile, {t, tap.h, tap.w}, c, a.target.outs,
                      smem.weight + ring.stage * C::kBytesN, arrived);
        ring.next();
        if (kBrought && --early == 0) mbarrier_arrive(smem.half);
      } while (!tap.next(1, h.window, w.window));
    }
  }
}

// What the tensor cores have done with is given back one step later.
struct Release {
  unsigned weight, input;

  __device__ __forceinline__ void run() {
    if (weight != 0) C::release(weight);
    if (input != 0) C::release(input);
    weight = input = 0;
  }
};

// `planes` inputs, one after another.
__device__ __forceinline__ void multiply_tile(const Operands& a, const TmaPlace& tile, int planes,
                                              float (&sums)[C::kMmas][kTileN / 2], C::Bias& bias, int part,
                                              const Shared& smem, Ring<2>& inputs, Ring<kStages>& ring, C::Rows& rows,
                                              const Panels& own, Panels::Pieces& pieces) {
  Release waiting = {0, 0};
  bias.ask(a.target, tile);
  bias.begin(sums);
  for (int i = 0; i < planes; ++i) {
    if (kAhead && i > 0 && i == planes - 1) own.take(pieces, tile, a.target.outs);
    if (i == planes - 1)
      rows = C::Rows(tile, part, a);  // while products run: those of the last stage do not last long enough
    const unsigned input = smem.input + inputs.stage * smem.input_bytes + part * C::kMmas * 64 * C::kRow;
    mbarrier_wait(smem.input_full + inputs.stage * 8, inputs.parity);
    for (int r = 0; r < a.axes.h.window; ++r)
      for (int s = 0; s < a.axes.w.window; ++s) {
        mbarrier_wait(smem.full + ring.stage * 8, ring.parity);
        C::multiply(sums, input + a.shift(r, s) * C::kRow, smem.weight + ring.stage * C::kBytesN);
        wgmma_wait_group<1>();
        waiting.run();
        waiting.weight = smem.empty + ring.stage * 8;
        ring.next();
      }
    waiting.input = smem.input_empty + inputs.stage * 8;
    inputs.next();
  }
  if (kAhead && planes == 1) own.take(pieces, tile, a.target.outs);
  C::finish(sums);
  waiting.run();
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  y = after_previous_kernel(y);  // the operands are there, too
  const Operands operands = on_raster(target_of(bias, residual, y, a), a);
  const ConvAxes& axes = operands.axes;
  const long long tiles_m = a.tiles_m, tiles_n = a.tiles_n;
  const Shared smem((shared_address(smem_memory) + 1023) & ~1023u, operands.reach);
  const char* panels = smem_memory + (smem.panels - shared_address(smem_memory));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 + kStages; ++i) {
      mbarrier_init(i < 2 ? smem.input_full + i * 8 : smem.full + (i - 2) * 8, 1);
      mbarrier_init(i < 2 ? smem.input_empty + i * 8 : smem.empty + (i - 2) * 8, C::kConsumers);
    }
    mbarrier_init(smem.half, 1);
    if (kBrought) Panels::init(smem.panel_barriers);
    fence_mbarrier_init();
  }
  __syncthreads();
  const int part = warpgroup() - 1;
  const long long tiles = tiles_m * tiles_n * a.groups;
  const int planes = axes.d.window * ((operands.weight.channels + C::kTileK - 1) / C::kTileK);
  Ring<2> inputs;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(a.x);
      prefetch_tensormap(a.weight);
      // Stages before the first residual: half of those before it is waited for, which is at the last plane of several.
      int early = max(max(planes - 1, 1) * axes.h.window * axes.w.window / 2, 1);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_tile(operands, a.x, a.weight, C::place(i, tiles_m, tiles_n), smem, inputs, ring, early);
      }
    } else if (kBrought && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= C::kConsumers) {
      Panels carried(panels, smem.panel_barriers, static_cast<int>(threadIdx.x) / 32 - 1);
      const int count = static_cast<int>((tiles - blockIdx.x - 1) / gridDim.x) + 1;
      const auto tile = [&](int i) {
        return C::place(blockIdx.x + static_cast<long long>(i) * gridDim.x, tiles_m, tiles_n);
      };
      mbarrier_wait(smem.half, 0);
      carried.carry<false>(a.residual_map, a.residual_map, count, tile, operands.target.outs, operands);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::kMore>();
    float sums[C::kMmas][kTileN / 2];
    C::Bias bias;
    Panels own(panels, smem.panel_barriers, part);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const TmaPlace tile = C::place(i, tiles_m, tiles_n);
      C::Rows rows;
      Panels::Pieces pieces;
      multiply_tile(operands, tile, planes, sums, bias, part, smem, inputs, ring, rows, own, pieces);
      if constexpr (kAhead) {
        Panels::add(sums, pieces, tile, operands.target.outs);
        own.let_go();
      } else if constexpr (kBrought) {
        own.add(sums, tile, operands.target.outs);
        own.let_go();
      }
      C::write_rows<Config::kResidual && !kBrought>(operands.target, sums, tile, rows);
    }
  }
}
