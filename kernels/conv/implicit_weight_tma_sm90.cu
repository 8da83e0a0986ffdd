// The weight gradient as one matrix product whose operands TMA brings, the windows gathered on the way: partial sums of
// dw[k, tap, c] = sum over m of dy[m, k] * x[window m at tap, c], m counting the output pixels of all images.
//
// Layout:  x and dy channels-last in memory, behind tensor maps of windows (im2col), of x with the strides and the
//          padding, of dy of one pixel; partial (splits, groups K, taps C) float32, which split_sums.cu adds up in a
//          fixed order; kDirect, with one split: the weight's gradient itself, by its steps. The columns are panels of
//          64 channels of a tap. A block takes tiles of kTileM output channels x kTileN columns over one split of the
//          pixels, one after another. One thread of its first warpgroup asks for 64 pixels a stage of every panel of
//          both operands, through a ring of kStages; both run along m or n in their rows, so the products take them
//          transposed. The other two warpgroups multiply, each one half of the tile: of its output channels, or of its
//          columns where kTileM is 64.
// Needs:   sm_90a; strides of x and dy multiples of 16 bytes; C of a group a multiple of 64 where there are several
//          groups; corners and offsets of the window within what a map can hold (conv_tma.py).
// Bound:   the tensor cores, or the L2 where the tile is small. Sums in float32.

#include "conv/wgrad.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/im2col.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "dnnarray/ptx/tma.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kTileM = 256;
  static constexpr int kTileN = 192;
  static constexpr int kStages = 4;
  static constexpr int kAxes = 2;
  static constexpr bool kDirect = false;
  static constexpr int kSize = 64;
};
struct Arguments {
  dnnarray::TensorMap dy;
  dnnarray::TensorMap x;
  long long rows;
  int channels;
  int tiles_m;
  int tiles_n;
  int groups;
  int outs;
  int splits;
  int blocks;
  dnnarray::PixelStrides w_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_implicit_weight_tma_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages, kAxes = Config::kAxes;
constexpr int kGroup = 128, kConsumers = 2, kThreads = (1 + kConsumers) * kGroup;  // threads of a warpgroup, of a block
constexpr int kPixels = 64, kRow = 128, kFewer = 56, kMore = 224;  // registers of asking and of multiplying threads
constexpr int kPanel = kPixels * kRow, kPanelsM = kTileM / 64, kPanelsN = kTileN / 64,
              kStage = (kPanelsM + kPanelsN) * kPanel;
constexpr bool kHalves = kTileM == 64;  // the warpgroups divide the columns
constexpr int kSize =
    Config::kSize;  // 64, or channels of the groups on both sides that make up 64: only sums within a group are kept
constexpr int kMmas = kHalves ? 1 : kTileM / 128, kWidth = kHalves ? kTileN / 2 : kTileN;

extern __shared__ char smem_memory[];

struct Operands {
  WeightSums sums;
  WeightResult<T> result;
  ConvAxes axes;
  long long rows;
  int blocks_c, columns, tiles_m, tiles_n, splits,
      blocks;  // panels of a tap and of all; blocks of 64 pixels in a split
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

struct Tile {
  int k, panel, group, split;

  __device__ __forceinline__ static Tile of(const Operands& a, int i) {
    const int n = i % a.tiles_n, by_n = i / a.tiles_n, m = by_n % a.tiles_m, by_m = by_n / a.tiles_m;
    return {m * kTileM, n * kPanelsN, by_m % a.sums.groups, by_m / a.sums.groups};
  }
};

__device__ __forceinline__ long long first_pixel(const Operands& a, const Tile& tile) {
  return static_cast<long long>(tile.split) * a.blocks * kPixels;
}

// Blocks of pixels of a tile's split.
__device__ __forceinline__ int block_count(const Operands& a, const Tile& tile) {
  const long long left = (a.rows - first_pixel(a, tile) + kPixels - 1) / kPixels;
  return static_cast<int>(left < a.blocks ? left : a.blocks);
}

// --- the thread that asks
// ---------------------------------------------------------------------------------------------

__device__ __forceinline__ void ask_tile(const Operands& a, const TensorMap& dy, const TensorMap& x, const Tile& tile,
                                         unsigned smem, const Barriers& barriers, Ring<kStages>& ring) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const int panels_m = min((a.sums.outs - tile.k + 63) / 64, kPanelsM),
            panels_n = min(a.columns - tile.panel, kPanelsN);
  int channel[kPanelsN];
  TapPlace offset[kPanelsN];
#pragma unroll
  for (int p = 0; p < kPanelsN; ++p) {
    const int tap = (tile.panel + p) / a.blocks_c;
    const Place at = Place::of(tap, h.window, w.window);
    channel[p] = tile.group * a.sums.channels + (tile.panel + p - tap * a.blocks_c) * 64;
    offset[p] = {static_cast<unsigned short>(at.w * w.dilation), static_cast<unsigned short>(at.h * h.dilation),
                 static_cast<unsigned short>(at.d * d.dilation)};
  }
  Pixel pixel = Pixel::of(a.axes, first_pixel(a, tile));
  const Pixel distance = Pixel::of(a.axes, kPixels);
  for (int left = block_count(a, tile); left > 0; --left) {
    const unsigned stage = smem + ring.stage * kStage, full = barriers.full + ring.stage * 8;
    mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
    mbarrier_arrive_expect_tx(full, (panels_m + panels_n) * kPanel);
    WindowPlace place = {tile.group * a.sums.outs + tile.k, pixel.w, pixel.h, pixel.d, static_cast<int>(pixel.n)};
#pragma unroll
    for (int p = 0; p < kPanelsM; ++p, place.c += 64) {
      if (p < panels_m) tma_load_im2col<kAxes>(stage + p * kPanel, dy, full, place, TapPlace{0, 0, 0});
    }
    place.w = pixel.w * w.stride - w.before, place.h = pixel.h * h.stride - h.before,
    place.d = pixel.d * d.stride - d.before;
#pragma unroll
    for (int p = 0; p < kPanelsN; ++p) {
      place.c = channel[p];
      if (p < panels_n) tma_load_im2col<kAxes>(stage + (kPanelsM + p) * kPanel, x, full, place, offset[p]);
    }
    pixel.advance(a.axes, distance);
    ring.next();
  }
}

// --- the warpgroups that multiply
// -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(float (&sums)[kMmas][kWidth / 2], int blocks, int part, unsigned smem,
                                              const Barriers& barriers, Ring<kStages>& ring) {
  const bool leader = threadIdx.x % kGroup == 0;
  unsigned before = 0;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) sums[i][j] = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    wgmma_fence();
    const unsigned long long b =
        transposed_panel(stage + (kPanelsM + (kHalves ? part * kPanelsN / 2 : 0)) * kPanel, kPanel);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const unsigned long long a = transposed_panel(stage + (kHalves ? 0 : part * kMmas + i) * kPanel, kPanel);
#pragma unroll
      for (int k = 0; k < kPixels / 16; ++k) Wgmma<T, true, true, kWidth>::run(sums[i], a + 128 * k, b + 128 * k);
    }
    wgmma_commit_group();
    wgmma_wait_group<1>();
    if (block > 0 && leader) mbarrier_arrive(before);
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait_group<0>();
#pragma unroll
  for (int i = 0; i < kMmas; ++i) hold(sums[i]);
  if (blocks > 0 && leader) mbarrier_arrive(before);
}

template <int kPanel, int kCount>
__device__ __forceinline__ void write_panels(const Operands& a, const float (&sums)[kCount], const Tile& tile,
                                             int panel, int k, int half) {
  if (panel >= a.columns) return;
  const int tap = panel / a.blocks_c, c = (panel - tap * a.blocks_c) * 64;
  if constexpr (Config::kDirect) {
    write_sums<kPanel * 32>(a.result.at(a.axes, tile.group * a.sums.outs + k, tap) + c, sums, half,
                            a.sums.channels - c);
  } else {
    write_partial<kPanel * 32, kSize>(a.sums, sums, half, tile.split, tile.group, k, tap, c);
  }
  if constexpr (kPanel + 1 < kCount / 32) write_panels<kPanel + 1>(a, sums, tile, panel + 1, k, half);
}

__device__ __forceinline__ void write_tile(const Operands& a, const float (&sums)[kMmas][kWidth / 2], const Tile& tile,
                                           int part) {
  const int in_group = threadIdx.x % kGroup, panel = tile.panel + (kHalves ? part * kPanelsN / 2 : 0);
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k =
          tile.k + (kHalves ? 0 : (part * kMmas + i) * 64) + in_group / 32 * 16 + in_group % 32 / 4 + 8 * half;
      if (k < a.sums.outs) write_panels<0>(a, sums[i], tile, panel, k, half);
    }
}

// `channels` and `outs` of a group, `blocks` of 64 pixels in a split; steps of the result in elements.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(float* __restrict__ partial, T* __restrict__ result, const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const ConvAxes& axes = a.axes;
  const PixelStrides& steps = a.w_strides;
  const int taps = axes.d.window * axes.h.window * axes.w.window, blocks_c = (a.channels + 63) / 64;
  const Operands operands = {{partial, a.groups, a.outs, taps, a.channels},
                             {result, steps.n, steps.d, steps.h, steps.w},
                             axes,
                             a.rows,
                             blocks_c,
                             blocks_c * taps,
                             a.tiles_m,
                             a.tiles_n,
                             a.splits,
                             a.blocks};
  const unsigned smem = (shared_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage;
  const Barriers barriers = {first, first + kStages * 8};
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(barriers.full + s * 8, 1);
      mbarrier_init(barriers.empty + s * 8, kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int tiles = operands.tiles_m * operands.tiles_n * operands.sums.groups * operands.splits,
            part = warpgroup() - 1;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<kFewer>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(a.dy);
      prefetch_tensormap(a.x);
      for (int t = blockIdx.x; t < tiles; t += gridDim.x)
        ask_tile(operands, a.dy, a.x, Tile::of(operands, t), smem, barriers, ring);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<kMore>();
    float sums[kMmas][kWidth / 2];
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const Tile tile = Tile::of(operands, t);
      multiply_tile(sums, block_count(operands, tile), part, smem, barriers, ring);
      write_tile(operands, sums, tile, part);
    }
  }
}
