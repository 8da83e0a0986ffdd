// The weight gradient of float32 images in parts of half types (parts.cuh) as one matrix product: partial sums of dw[k,
// tap, c] = 2^e * sum over m of dy[m, k] * x[window m at tap, c], m counting the output pixels of all images.
//
// Layout:  the parts of x channels-last behind tensor maps of windows (im2col), those of dy (pixels, channels) behind
//          tiled ones; partial (splits, groups K, taps C) float32, which parts_weight_sums.cu adds up in a fixed order.
//          A block takes tiles of kTileM output channels x kTileN columns, panels of 64 channels of a tap, over one
//          split of the pixels, one after another. One thread of the first warpgroup asks for 64 pixels a stage, all
//          parts of both; operands run along m or n in their rows, so the products take them transposed. The other two
//          warpgroups multiply, each one half of the tile: of its channels, or of its columns where kTileM is 64.
//          kScaled: e is the sum of the exponents of dy and x.
// Needs:   sm_90a; strides of the parts multiples of 16 bytes; channels of a group multiples of 64 where there are
//          several groups; fewer than 2^31 pixels.
// Bound:   the tensor cores. Sums in float32.

#include "conv/implicit_tma.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"
#include "conv/im2col.cuh"
#include "conv/parts_sums.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
  static constexpr int kAxes = 2;
  static constexpr int kParts = 2;
  static constexpr bool kScaled = true;
};
#define DNNARRAY_ENTRY conv_parts_weight_tma_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages, kParts = Config::kParts;
constexpr int kGroup = 128, kThreads = 3 * kGroup, kPixels = 64,
              kPanel = kPixels * 128;  // a panel: 64 pixels x 64 channels
constexpr int kPanelsM = kTileM / 64, kPanelsN = kTileN / 64, kStage = kParts * (kPanelsM + kPanelsN) * kPanel;
constexpr int kFewer = 56, kMore = 224;  // registers of asking and of multiplying threads
constexpr bool kHalves = kTileM == 64;   // the warpgroups divide the columns
constexpr int kWidth = kHalves ? kTileN / 2 : kTileN;
using Sums = PartSums<kParts, 1, kWidth / 2>;

extern __shared__ char smem_memory[];

struct Maps {
  const TensorMap *dy[kParts], *x[kParts];
};

struct Arguments {
  float* partial;
  ConvAxes axes;
  long long rows, tiles_m, tiles_n, groups, splits, blocks;  // blocks of 64 pixels in a split
  int outs, channels, panels_c;

  __device__ __forceinline__ int taps() const { return axes.d.window * axes.h.window * axes.w.window; }
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

struct Tile {
  int k, panel, group;
  long long first;  // pixel
  int blocks;

  __device__ __forceinline__ static Tile of(const Arguments& a, long long i) {
    const Split by_n = split(i, static_cast<int>(a.tiles_n)), by_m = split(by_n.quotient, static_cast<int>(a.tiles_m)),
                by_g = split(by_m.quotient, static_cast<int>(a.groups));
    const long long first = by_g.quotient * a.blocks * kPixels, left = (a.rows - first + kPixels - 1) / kPixels;
    return {by_m.rest * kTileM, by_n.rest * kPanelsN, by_g.rest, first,
            static_cast<int>(left < a.blocks ? left : a.blocks)};
  }
};

// A panel of columns: its first channel and its tap, which is behind the window where there is no such panel.
struct Column {
  int c, tap;

  __device__ __forceinline__ Column(const Arguments& a, int panel)
      : c(panel % a.panels_c * 64), tap(panel / a.panels_c) {}
};

__device__ __forceinline__ TapPlace offset_of(const ConvAxes& axes, int tap) {
  const Place at = Place::of(tap, axes.h.window, axes.w.window);
  return {static_cast<unsigned short>(at.w * axes.w.dilation), static_cast<unsigned short>(at.h * axes.h.dilation),
          static_cast<unsigned short>(at.d * axes.d.dilation)};
}

__device__ __forceinline__ void ask_tile(const Arguments& a, const Maps& maps, const Tile& tile, unsigned smem,
                                         const Barriers& barriers, Ring<kStages>& ring) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const int there = min(a.taps() * a.panels_c - tile.panel, kPanelsN);
  TapPlace offsets[kPanelsN];
  int channels[kPanelsN];
#pragma unroll
  for (int n = 0; n < kPanelsN; ++n) {
    const Column column(a, tile.panel + n);
    offsets[n] = offset_of(a.axes, column.tap);
    channels[n] = tile.group * a.channels + column.c;
  }
  Pixel pixel = Pixel::of(a.axes, tile.first);
  const Pixel distance = Pixel::of(a.axes, kPixels);
  for (int block = 0; block < tile.blocks; ++block, pixel.advance(a.axes, distance)) {
    const unsigned stage = smem + ring.stage * kStage, full = barriers.full + ring.stage * 8;
    const int m = static_cast<int>(tile.first) + block * kPixels;
    WindowPlace place = {0, pixel.w * w.stride - w.before, pixel.h * h.stride - h.before, pixel.d * d.stride - d.before,
                         static_cast<int>(pixel.n)};
    mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
    mbarrier_arrive_expect_tx(full, kParts * (kPanelsM + there) * kPanel);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const unsigned rows = stage + p * kPanelsM * kPanel,
                     columns = stage + (kParts * kPanelsM + p * kPanelsN) * kPanel;
#pragma unroll
      for (int i = 0; i < kPanelsM; ++i) {
        tma_load(rows + i * kPanel, *maps.dy[p], full, BoxPlace{tile.group * a.outs + tile.k + i * 64, 0, 0, 0, m});
      }
#pragma unroll
      for (int n = 0; n < kPanelsN; ++n) {
        if (n >= there) continue;
        place.c = channels[n];
        tma_load_im2col<Config::kAxes>(columns + n * kPanel, *maps.x[p], full, place, offsets[n]);
      }
    }
    ring.next();
  }
}

// The operands of one stage, for one warpgroup.
struct Stage {
  unsigned rows, columns;

  __device__ __forceinline__ void multiply(float (&sums)[1][kWidth / 2], int a, int b) const {
    wgmma_fence();
    const unsigned long long from_dy = transposed_panel(rows + a * kPanelsM * kPanel, kPanel);
    const unsigned long long from_x = transposed_panel(columns + b * kPanelsN * kPanel, kPanel);
#pragma unroll
    for (int k = 0; k < kPixels / 16; ++k)
      Wgmma<T, true, true, kWidth>::run(sums[0], from_dy + 128 * k, from_x + 128 * k);
    wgmma_commit_group();
  }
};

__device__ __forceinline__ void multiply_tile(Sums& sums, int blocks, int part, unsigned smem, const Barriers& barriers,
                                              Ring<kStages>& ring) {
  const bool leader = threadIdx.x % kGroup == 0;
  unsigned before = 0;
  sums.clear();
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    const unsigned rows = stage + (kHalves ? 0 : part * kPanel),
                   columns = stage + (kParts * kPanelsM + (kHalves ? part * kPanelsN / 2 : 0)) * kPanel;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    sums.add(Stage{rows, columns}, [&] {
      if (block > 0 && leader) mbarrier_arrive(before);
    });
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  sums.finish();
  if (blocks > 0 && leader) mbarrier_arrive(before);
}

__device__ __forceinline__ void write_tile(const Arguments& a, const Sums& sums, const Factors& scale, const Tile& tile,
                                           long long of_split, int part) {
  const int in_group = threadIdx.x % kGroup,
            row = tile.k + (kHalves ? 0 : part * 64) + in_group / 32 * 16 + in_group % 32 / 4;
  const int first = tile.panel + (kHalves ? part * kPanelsN / 2 : 0), taps = a.taps();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = row + 8 * half;
    if (k >= a.outs) continue;
    float* out = a.partial + ((of_split * a.groups + tile.group) * a.outs + k) * taps * a.channels;
#pragma unroll
    for (int n = 0; n < kWidth / 64; ++n) {
      const Column column(a, first + n);
      if (column.tap >= taps) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = column.c + j * 8 + in_group % 4 * 2 + e;
          const float v = sums.total[0][(n * 8 + j) * 4 + half * 2 + e];
          if (c < a.channels) out[static_cast<long long>(column.tap) * a.channels + c] = Config::kScaled ? scale(v) : v;
        }
      }
    }
  }
}

// `outs` and `channels` of a group. Of one part, the maps of the second are not used.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap dy, const __grid_constant__ TensorMap dy_later,
                   const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap x_later,
                   const Scale* __restrict__ dy_scale, const Scale* __restrict__ x_scale, float* __restrict__ partial,
                   long long rows, long long tiles_m, long long tiles_n, long long groups, long long outs,
                   long long channels, long long splits, long long blocks, long long d0, long long d1, long long d2,
                   long long h0, long long h1, long long h2, long long w0, long long w1, long long w2) {
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const Arguments a = {partial,
                       axes,
                       rows,
                       tiles_m,
                       tiles_n,
                       groups,
                       splits,
                       blocks,
                       static_cast<int>(outs),
                       static_cast<int>(channels),
                       static_cast<int>((channels + 63) / 64)};
  const unsigned smem = (shared_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage;
  const Barriers barriers = {first, first + kStages * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(barriers.full + i * 8, 1);
      mbarrier_init(barriers.empty + i * 8, 2);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  let_next_kernel_begin();
  x_scale =
      after_previous_kernel(x_scale);  // operands are in parts, and what stood in the result's memory is done with
  const long long each = tiles_m * tiles_n * groups, tiles = each * splits;
  const int part = static_cast<int>(threadIdx.x) / kGroup - 1;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<kFewer>();
    if (threadIdx.x == 0) {
      Maps maps = {{&dy}, {&x}};
      if constexpr (kParts == 2) maps.dy[1] = &dy_later, maps.x[1] = &x_later;
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) ask_tile(a, maps, Tile::of(a, i), smem, barriers, ring);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<kMore>();
    const Factors scale(Config::kScaled ? dy_scale->exponent + x_scale->exponent : 0);
    Sums sums;
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile tile = Tile::of(a, i);
      multiply_tile(sums, tile.blocks, part, smem, barriers, ring);
      write_tile(a, sums, scale, tile, i / each, part);
    }
  }
}
