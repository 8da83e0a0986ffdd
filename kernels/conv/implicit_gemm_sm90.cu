// Convolution as one matrix product whose left operand, the windows, is gathered on the way into shared memory: y[m, k]
// = f(sum over taps and c of x[window m at tap, c] * w[k, tap, c] + bias[k] + residual[m, k]), m counting the output
// pixels of all images.
//
// Layout:  x channels-last in memory; w (groups K, taps C) dense; y and residual by steps along batch and space, their
//          channels dense. kTransposed: the gradient of the input from the forward's weight, whose dense channels are
//          those of the result here; the taps of 64 channels of the sum are walked before the next 64. A block takes
//          tiles of kTileM pixels x kTileN channels, one after another. The first of its three warpgroups gathers:
//          thread t fills chunk t % 8 (16 bytes) of every kStep-th row of both operands' panels (mma/warpgroup.cuh),
//          through a ring of kStages. The others multiply, each one half of the tile's rows, and write it from
//          registers, four neighbouring lanes 64 bytes of a row.
// Needs:   sm_90a; C and K of a group multiples of 8 (kTransposed: C of 64), pointers aligned to 16 bytes; taps along
//          the three axes at most 31 together.
// Bound:   the tensor cores, or the L2 where K is small. Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "conv/im2col.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"
#include "conv/epilogue.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 4;
  static constexpr bool kTransposed = false;
};
struct Arguments {
  long long rows;
  int channels;
  int total;
  long long tiles_m;
  long long tiles_n;
  long long groups;
  int outs;
  long long w_group;
  long long w_row;
  long long window_strides[3];
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_implicit_gemm_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kGroup = 128, kThreads = 3 * kGroup;  // threads of a warpgroup, of a block
constexpr int kTileK = 64, kRow = 128, kChunks = 8,
              kStep = kGroup / kChunks;  // bytes and chunks of a row, rows at once
constexpr int kRowsM = kTileM / kStep, kRowsN = kTileN / kStep, kMmas = kTileM / 128;
constexpr int kFewer = 72, kMore = 216;  // registers of gathering and of multiplying threads
constexpr int kBytesM = kTileM * kRow, kBytesN = kTileN * kRow, kStage = kBytesM + kBytesN;

extern __shared__ char smem_memory[];

struct Operands {
  const T *x, *w;
  Windows windows;
  Target<T, R> target;
  long long tiles_m, tiles_n, groups;
  long long w_group, w_row, w_d, w_h, w_w;
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

struct Tile {
  long long m;
  int n, group;

  __device__ __forceinline__ static Tile of(const Operands& a, long long i) {
    const Split by_n = split(i, static_cast<int>(a.tiles_n));
    const long long group = by_n.quotient / a.tiles_m;
    return {(by_n.quotient - group * a.tiles_m) * kTileM, by_n.rest * kTileN, static_cast<int>(group)};
  }
};

// --- the warpgroup that gathers
// ---------------------------------------------------------------------------------------

// The rows of the windows that this thread fills. Eight lanes fill the same ones, so each of them finds an eighth.
__device__ __forceinline__ void find_rows(const Operands& a, const Tile& tile, WindowRow (&rows)[kRowsM]) {
  constexpr int kFound = kRowsM < kChunks ? kRowsM : kChunks;
  const int own = threadIdx.x % kFound, first = threadIdx.x / kChunks;
#pragma unroll
  for (int part = 0; part < kRowsM / kFound; ++part) {
    const WindowRow mine = window_row(a.windows, tile.m + first + kStep * (part * kFound + own));
#pragma unroll
    for (int i = 0; i < kFound; ++i) {
      rows[part * kFound + i].base = __shfl_sync(0xffffffffu, mine.base, i, kChunks);
      rows[part * kFound + i].mask = __shfl_sync(0xffffffffu, mine.mask, i, kChunks);
    }
  }
}

// The weight of one block, rows of the result's channels; `w` points at this thread's first chunk.
__device__ __forceinline__ void gather_weight(const Operands& a, const Tile& tile, const T* w, bool inside,
                                              unsigned target) {
  const int last = a.target.outs - tile.n - threadIdx.x / kChunks;  // rows from this thread's first on
#pragma unroll
  for (int i = 0; i < kRowsN; ++i, w += kStep * a.w_row) {
    const bool there = inside && kStep * i < last;
    cp_async_cg(target + i * kStep * kRow, there ? w : a.w, there);
  }
}

// The same kTransposed: rows of the sum's channels, in panels of 64 of the result's.
__device__ __forceinline__ void gather_transposed(const Operands& a, const Tile& tile, const T* w, unsigned target) {
  const int last = a.target.outs - tile.n - threadIdx.x % kChunks * 8;
#pragma unroll
  for (int i = 0; i < kTileK / kStep; ++i, w += kStep * a.w_row)
#pragma unroll
    for (int p = 0; p < kTileN / 64; ++p) {
      const bool there = p * 64 < last;
      cp_async_cg(target + p * kTileK * kRow + i * kStep * kRow, there ? w + p * 64 : a.w, there);
    }
}

__device__ __forceinline__ void gather_tile(const Operands& a, const Tile& tile, unsigned smem,
                                            const Barriers& barriers, Ring<kStages>& ring) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
  const unsigned place = row * kRow + (chunk ^ row % 8) * 16;
  WindowRow rows[kRowsM];
  find_rows(a, tile, rows);
  const T* x = a.x + static_cast<long long>(tile.group) * a.windows.channels * 8;
  const T* w = a.w + tile.group * a.w_group + tile.n + chunk * 8;
  w += Config::kTransposed ? row * a.w_row : (tile.n + row) * a.w_row - tile.n;
  WindowChunk at = Config::kTransposed ? WindowChunk{chunk, 0, 0, 0} : WindowChunk::of(a.windows, chunk);
  for (int block = 0; block < a.windows.total; block += kChunks) {
    const unsigned stage = smem + ring.stage * kStage, bits = at.bits(a.windows);
    const int step = at.step(a.windows);
    mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kRowsM; ++i) {
      const bool there = (rows[i].mask & bits) == bits;
      const T* from = x + (there ? static_cast<long long>(rows[i].base + step) * 8 : 0);
      cp_async_cg(stage + place + i * kStep * kRow, from, there);
    }
    if constexpr (Config::kTransposed) {
      const long long tap = at.d * a.w_d + at.h * a.w_h + at.w * a.w_w;
      gather_transposed(a, tile, w + tap + (at.c - chunk) * 8 * a.w_row, stage + kBytesM + place);
      at.advance_tap(a.windows, kChunks);
    } else {
      gather_weight(a, tile, w, block + chunk < a.windows.total, stage + kBytesM + place);
      at.advance(a.windows, kChunks);
      w += kTileK;
    }
    cp_async_mbarrier_arrive(barriers.full + ring.stage * 8);
    ring.next();
  }
}

// --- the warpgroups that multiply
// -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(float (&sums)[kMmas][kTileN / 2], int blocks, int part, unsigned smem,
                                              const Barriers& barriers, Ring<kStages>& ring) {
  unsigned before = 0;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    fence_proxy_async();
    wgmma_fence();
    constexpr bool kTransposedWeight = Config::kTransposed;
    const unsigned long long b =
        kTransposedWeight ? transposed_panel(stage + kBytesM, kTileK * kRow) : panel(stage + kBytesM);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const unsigned long long a = panel(stage + (part * kMmas + i) * 64 * kRow);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        Wgmma<T, false, kTransposedWeight, kTileN>::run(sums[i], a + 2 * k, b + (kTransposedWeight ? 128 : 2) * k);
    }
    wgmma_commit_group();
    wgmma_wait_group<1>();
    if (block > 0 && threadIdx.x % kGroup == 0) mbarrier_arrive(before);
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait_group<0>();
#pragma unroll
  for (int i = 0; i < kMmas; ++i) hold(sums[i]);
  if (threadIdx.x % kGroup == 0) mbarrier_arrive(before);
}

__device__ __forceinline__ void write_tile(const Operands& a, const float (&sums)[kMmas][kTileN / 2], const Tile& tile,
                                           int part) {
  const int in_group = threadIdx.x % kGroup, row = in_group / 32 * 16 + in_group % 32 / 4;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long m = tile.m + (part * kMmas + i) * 64 + row + half * 8;
      const long long at = a.target.row(a.windows.axes, m);
      write_row<Config, kTileN>(a.target, sums[i], half, tile.group, tile.n, at, m < a.windows.rows);
    }
}

// The strides of x count chunks of 8 elements, all others elements; `channels` of a group and `total` of a row in
// chunks.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, R* __restrict__ y, const __grid_constant__ Arguments a) {
  const Operands operands = {x,
                             weight,
                             windows_of(a),
                             target_of(bias, residual, y, a),
                             a.tiles_m,
                             a.tiles_n,
                             a.groups,
                             a.w_group,
                             a.w_row,
                             a.window_strides[0],
                             a.window_strides[1],
                             a.window_strides[2]};
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
  const long long tiles = a.tiles_m * a.tiles_n * a.groups;
  const int part = warpgroup() - 1;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<kFewer>();
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x)
      gather_tile(operands, Tile::of(operands, i), smem, barriers, ring);
  } else {
    setmaxnreg_inc<kMore>();
    float sums[kMmas][kTileN / 2];
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile tile = Tile::of(operands, i);
      multiply_tile(sums, (a.total + kChunks - 1) / kChunks, part, smem, barriers, ring);
      write_tile(operands, sums, tile, part);
    }
  }
}
