// The weight gradient as one matrix product whose right operand, the windows, is gathered on the way into shared
// memory: partial sums of dw[k, tap, c] = sum over m of dy[m, k] * x[window m at tap, c], m counting the output pixels
// of all images.
//
// Layout:  x and dy channels-last in memory; partial (splits, groups K, taps C) float32, which split_sums.cu adds up in
//          a fixed order. A block takes tiles of kTileM output channels x kTileN columns (tap, c) over one split of the
//          pixels, one after another. Its first warpgroup gathers 64 pixels a stage: thread t fills chunk t % 8 (16
//          bytes) of every kStep-th pixel in each panel of 64 channels or columns (mma/warpgroup.cuh); both operands
//          run along m or n in their rows, so the products take them transposed. The other two multiply, each one half
//          of the tile: of its channels, or of its columns where kTileM is 64.
// Needs:   sm_90a; C and K of a group multiples of 8, pointers aligned to 16 bytes; taps along the three axes at most
//          31 together.
// Bound:   the tensor cores, or the gathering where the tile is small. Sums in float32.

#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "conv/im2col.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 256;
  static constexpr int kStages = 4;
};
struct Arguments {
  long long rows;
  int channels;
  int total;
  long long tiles_m;
  long long tiles_n;
  long long groups;
  long long outs;
  long long splits;
  long long blocks;
  dnnarray::PixelStrides x_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_implicit_weight_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kGroup = 128, kThreads = 3 * kGroup;  // threads of a warpgroup, of a block
constexpr int kPixels = 64, kRow = 128, kChunks = 8, kStep = kGroup / kChunks, kRows = kPixels / kStep;
constexpr int kFewer = 72, kMore = 216;  // registers of gathering and of multiplying threads
constexpr int kPanel = kPixels * kRow, kPanelsM = kTileM / 64, kPanelsN = kTileN / 64,
              kStage = (kPanelsM + kPanelsN) * kPanel;
constexpr bool kHalves = kTileM == 64;  // the warpgroups divide the columns
constexpr int kWidth = kHalves ? kTileN / 2 : kTileN;

extern __shared__ char smem_memory[];

struct Operands {
  const T *dy, *x;
  float* partial;
  Windows windows;
  long long tiles_m, tiles_n, groups, outs, splits, blocks;  // blocks of 64 pixels in a split
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

struct Tile {
  int k, column, group;  // columns in chunks
  long long split;

  __device__ __forceinline__ static Tile of(const Operands& a, long long i) {
    const Split by_n = split_of(i, a.tiles_n), by_m = split_of(by_n.quotient, a.tiles_m),
                by_g = split_of(by_m.quotient, a.groups);
    return {by_m.rest * kTileM, by_n.rest * (kTileN / 8), by_g.rest, by_g.quotient};
  }
  __device__ __forceinline__ static Split split_of(long long i, long long n) {
    return dnnarray::split(i, static_cast<int>(n));
  }
};

__device__ __forceinline__ long long first_pixel(const Operands& a, const Tile& tile) {
  return tile.split * a.blocks * kPixels;
}

// Blocks of pixels of a tile's split.
__device__ __forceinline__ int block_count(const Operands& a, const Tile& tile) {
  const long long left = (a.windows.rows - first_pixel(a, tile) + kPixels - 1) / kPixels;
  return static_cast<int>(left < a.blocks ? left : a.blocks);
}

// --- the warpgroup that gathers
// ---------------------------------------------------------------------------------------

__device__ __forceinline__ void gather_tile(const Operands& a, const Tile& tile, unsigned smem,
                                            const Barriers& barriers, Ring<kStages>& ring) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks, pitch = static_cast<int>(a.groups * a.outs);
  const unsigned place = row * kRow + (chunk ^ row % 8) * 16;
  const T* x = a.x + static_cast<long long>(tile.group) * a.windows.channels * 8;
  const T* dy = a.dy + tile.group * a.outs + tile.k + chunk * 8;
  int step[kPanelsN];
  unsigned bits[kPanelsN];
#pragma unroll
  for (int p = 0; p < kPanelsN; ++p) {
    const WindowChunk at = WindowChunk::of(a.windows, tile.column + p * kChunks + chunk);
    step[p] = at.step(a.windows);
    bits[p] = at.bits(a.windows);
  }
  long long m = first_pixel(a, tile) + row;
  Pixel own = Pixel::of(a.windows.axes, m + kStep * (chunk % kRows));
  const Pixel distance = Pixel::of(a.windows.axes, kPixels);
  for (int left = block_count(a, tile); left > 0; --left, m += kPixels) {
    const unsigned stage = smem + ring.stage * kStage;
    WindowRow mine = window_row(a.windows, own);
    if (m + kStep * (chunk % kRows) >= a.windows.rows) mine.mask = 0;
    own.advance(a.windows.axes, distance);
    mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool there = m + kStep * i < a.windows.rows;
#pragma unroll
      for (int p = 0; p < kPanelsM; ++p) {
        const bool inside = there && tile.k + p * 64 + chunk * 8 < a.outs;
        cp_async_cg(stage + p * kPanel + place + i * kStep * kRow,
                    inside ? dy + (m + kStep * i) * pitch + p * 64 : a.dy, inside);
      }
      const int base = __shfl_sync(0xffffffffu, mine.base, i, kChunks);
      const unsigned mask = __shfl_sync(0xffffffffu, mine.mask, i, kChunks);
#pragma unroll
      for (int p = 0; p < kPanelsN; ++p) {
        const bool inside = (mask & bits[p]) == bits[p];
        const T* from = x + (inside ? static_cast<long long>(base + step[p]) * 8 : 0);
        cp_async_cg(stage + (kPanelsM + p) * kPanel + place + i * kStep * kRow, from, inside);
      }
    }
    cp_async_mbarrier_arrive(barriers.full + ring.stage * 8);
    ring.next();
  }
}

// --- the warpgroups that multiply
// -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(float (&sums)[kWidth / 2], int blocks, int part, unsigned smem,
                                              const Barriers& barriers, Ring<kStages>& ring) {
  unsigned before = 0;
#pragma unroll
  for (int j = 0; j < kWidth / 2; ++j) sums[j] = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    fence_proxy_async();
    wgmma_fence();
    const unsigned long long a = transposed_panel(stage + (kHalves ? 0 : part * kPanel), kPanel);
    const unsigned long long b =
        transposed_panel(stage + (kPanelsM + (kHalves ? part * kPanelsN / 2 : 0)) * kPanel, kPanel);
#pragma unroll
    for (int k = 0; k < kPixels / 16; ++k) Wgmma<T, true, true, kWidth>::run(sums, a + 128 * k, b + 128 * k);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    if (block > 0 && threadIdx.x % kGroup == 0) mbarrier_arrive(before);
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait_group<0>();
  if (blocks > 0 && threadIdx.x % kGroup == 0) mbarrier_arrive(before);
}

__device__ __forceinline__ void write_tile(const Operands& a, const float (&sums)[kWidth / 2], const Tile& tile,
                                           int part) {
  const int in_group = threadIdx.x % kGroup, total = a.windows.total * 8;
  const int row = tile.k + (kHalves ? 0 : part * 64) + in_group / 32 * 16 + in_group % 32 / 4;
  const int column = tile.column * 8 + (kHalves ? part * kWidth : 0) + in_group % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = row + 8 * half;
    float* out = a.partial + ((tile.split * a.groups + tile.group) * a.outs + k) * total + column;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      if (k >= a.outs || column + 8 * j >= total) continue;
      // Not `store`: its assembly would hold back the products.
      *reinterpret_cast<Vec<float, 2>*>(out + 8 * j) = {{sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}};
    }
  }
}

// x_n ... x_w are steps of x in chunks of 8 elements; `channels` of a group and `total` of a row in chunks.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const Operands operands = {dy, x, partial, windows_of(a), a.tiles_m, a.tiles_n, a.groups, a.outs, a.splits, a.blocks};
  const unsigned smem = (shared_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage;
  const Barriers barriers = {first, first + kStages * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(barriers.full + i * 8, kGroup);
      mbarrier_init(barriers.empty + i * 8, 2);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const long long tiles = a.tiles_m * a.tiles_n * a.groups * a.splits;
  const int part = warpgroup() - 1;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<kFewer>();
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x)
      gather_tile(operands, Tile::of(operands, i), smem, barriers, ring);
  } else {
    setmaxnreg_inc<kMore>();
    float sums[kWidth / 2];
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile tile = Tile::of(operands, i);
      multiply_tile(sums, block_count(operands, tile), part, smem, barriers, ring);
      write_tile(operands, sums, tile, part);
    }
  }
}
