// Convolution as one matrix product whose left operand, the windows, TMA gathers on the way into shared memory: y[m, k]
// = f(sum over taps and c of x[window m at tap, c] * w[k, tap, c] + bias[k] + residual[m, k]), m counting the output
// pixels of all images.
//
// Layout:  x channels-last in memory, behind a tensor map of windows (im2col) that has the strides, the padding and the
//          extents; w (groups K, taps C) behind a tiled one; y and residual by steps along batch and space, their
//          channels dense, or, kFirst > 0, y in channels-first memory, kFirst pixels of an image aligned to as many.
//          kTransposed: the gradient of the input from the forward's weight, whose dense channels are those of the
//          result here. A block takes tiles of kTileM pixels x kTileN channels, one after another. One thread of the
//          first warpgroup asks for the boxes of each tap and 64 channels, through a ring of kStages; the other
//          warpgroups multiply, each some of the tile's rows. An epilogue thread for each of them takes the results
//          away in panels of 64 channels. A residual comes into the same panels and is added in the middle of the
//          products. float32: both operands are rounded to TF32 by TMA, 32 channels where half types have 64; not
//          kTransposed.
// Needs:   sm_90a; strides of x and w multiples of 16 bytes; C of a group a multiple of 64 where there are several
//          groups; corners and offsets of the window within what a map can hold (conv_tma.py).
// Bound:   the tensor cores, or the L2 where K is small. Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "conv/panels.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"
#include "conv/im2col.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 256;
  static constexpr int kStages = 4;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
  static constexpr int kSets = 1;
  static constexpr int kFirst = 0;
};
struct Arguments {
  dnnarray::TensorMap x;
  dnnarray::TensorMap weight;
  dnnarray::TensorMap y_map;
  dnnarray::TensorMap residual_map;
  long long rows;
  int blocks;
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
#define DNNARRAY_ENTRY conv_implicit_tma_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Panels = TmaPanels<Config>;
using Residual = TmaResidual<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr bool kCarried = Panels::kStaged && Config::kFirst == 0;
constexpr int kTileN = Config::kTileN, kStages = Config::kStages, kStage = C::kBytesM + C::kBytesN;

extern __shared__ char smem_memory[];

struct Operands {
  Target<T, R> target;
  TmaWeight weight;
  ConvAxes axes;
  long long rows;

  __device__ __forceinline__ WindowPlace where(long long m) const {
    const Pixel pixel = Pixel::of(axes, m);
    return {0, pixel.w, pixel.h, pixel.d, static_cast<int>(pixel.n)};
  }
  __device__ __forceinline__ long long at(long long m) const { return m < rows ? target.row(axes, m) : -1; }
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

__device__ __forceinline__ void ask_tile(const Operands& a, const TensorMap& x, const TensorMap& weight,
                                         const TmaPlace& tile, unsigned smem, const Barriers& barriers,
                                         Ring<kStages>& ring, const TensorMap& residual, Residual& residuals) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  WindowPlace place = a.where(tile.m);
  place.w = place.w * w.stride - w.before, place.h = place.h * h.stride - h.before,
  place.d = place.d * d.stride - d.before;
  Place tap = {0, 0, 0};
  residuals.begin_tile();
  do {
    const TapPlace offset = {static_cast<unsigned short>(tap.w * w.dilation),
                             static_cast<unsigned short>(tap.h * h.dilation),
                             static_cast<unsigned short>(tap.d * d.dilation)};
    for (int c = 0; c < a.weight.channels; c += C::kTileK) {
      const unsigned stage = smem + ring.stage * kStage, full = barriers.full + ring.stage * 8;
      mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, kStage);
      place.c = tile.group * a.weight.channels + c;
      tma_load_im2col<Config::kAxes>(stage, x, full, place, offset);
      C::ask_weight(a.weight, weight, tile, tap, c, a.target.outs, stage + C::kBytesM, full);
      ring.next();
      if constexpr (Residual::kThere) residuals.stage_asked(residual, tile, a.target.outs, a);
    }
  } while (!tap.next(d.window, h.window, w.window));
  residuals.end_tile();
}

__device__ __forceinline__ void multiply_stages(float (&sums)[C::kMmas][kTileN / 2], int count, int part, unsigned smem,
                                                const Barriers& barriers, Ring<kStages>& ring) {
  unsigned before = 0;
  for (int i = 0; i < count; ++i) {
    const unsigned stage = smem + ring.stage * kStage;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    C::multiply(sums, stage + part * C::kMmas * 64 * C::kRow, stage + C::kBytesM);
    wgmma_wait_group<1>();
    if (before != 0) C::release(before);
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  C::finish(sums);
  if (before != 0) C::release(before);
}

// The residual stands between two runs of stages, the second of which may have none.
__device__ __forceinline__ void multiply_tile(const Operands& a, const TmaPlace& tile,
                                              float (&sums)[C::kMmas][kTileN / 2], C::Bias& bias, int blocks, int part,
                                              unsigned smem, const Barriers& barriers, Ring<kStages>& ring,
                                              Panels& own) {
  bias.ask(a.target, tile);
  bias.begin(sums);
  const int first = Residual::before(part, blocks);
#pragma unroll 1
  for (int run = 0; run < (Residual::kThere ? 2 : 1); ++run) {
    multiply_stages(sums, run == 0 ? first : blocks - first, part, smem, barriers, ring);
    if constexpr (Residual::kThere) {
      if (run == 0) {
        own.add(sums, tile, a.target.outs);
#pragma unroll
        for (int i = 0; i < C::kMmas; ++i) hold(sums[i]);
      }
    }
  }
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  y = after_previous_kernel(y);  // the operands are there, too
  const ConvAxes& axes = a.axes;
  const TmaWeight walk = {a.channels, a.backwards, axes.d.window, axes.h.window, axes.w.window};
  const Operands operands = {target_of(bias, residual, y, a), walk, axes, a.rows};
  const long long tiles_m = a.tiles_m, tiles_n = a.tiles_n;
  const int blocks = a.blocks;
  const unsigned smem = (shared_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage + Panels::kBytes;
  const Barriers barriers = {first, first + kStages * 8};
  const unsigned panel_barriers = first + 2 * kStages * 8;
  const char* panels = smem_memory + (first - Panels::kBytes - shared_address(smem_memory));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(barriers.full + i * 8, 1);
      mbarrier_init(barriers.empty + i * 8, C::kConsumers);
    }
    Panels::init(panel_barriers);
    fence_mbarrier_init();
  }
  __syncthreads();
  const long long tiles = tiles_m * tiles_n * a.groups;
  const int part = warpgroup() - 1;
  if (part < 0) {
    setmaxnreg_dec<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(a.x);
      prefetch_tensormap(a.weight);
      Ring<kStages> ring;
      Residual residuals(Panels(panels, panel_barriers, 0), blocks);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_tile(operands, a.x, a.weight, C::place(i, tiles_m, tiles_n), smem, barriers, ring, a.residual_map,
                 residuals);
      }
    } else if (kCarried && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= C::kConsumers) {
      Panels carried(panels, panel_barriers, static_cast<int>(threadIdx.x) / 32 - 1);
      const int count = static_cast<int>((tiles - blockIdx.x - 1) / gridDim.x) + 1;
      const auto tile = [&](int i) {
        return C::place(blockIdx.x + static_cast<long long>(i) * gridDim.x, tiles_m, tiles_n);
      };
      carried.carry<true>(a.residual_map, a.y_map, count, tile, operands.target.outs, operands,
                          Residual::stages_apart(blocks) > 0);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::kMore>();
    float sums[C::kMmas][kTileN / 2];
    C::Bias bias;
    Ring<kStages> ring;
    Panels own(panels, panel_barriers, part);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const TmaPlace tile = C::place(i, tiles_m, tiles_n);
      multiply_tile(operands, tile, sums, bias, blocks, part, smem, barriers, ring, own);
      if constexpr (kCarried) {
        own.write(operands.target, sums, tile);
      } else if constexpr (Config::kFirst > 0) {
        own.write_first(operands.target, sums, tile, operands, axes.d.out * axes.h.out * axes.w.out);
      } else {
        C::write_rows<Config::kResidual>(operands.target, sums, tile, C::Rows(tile, part, operands));
      }
    }
  }
}
