// Convolution as one matrix product whose left operand, the windows, is gathered on the way into shared memory: y[m, k] =
// f(sum over taps and c of x[window m at tap, c] * w[k, tap, c] + bias[k] + residual[m, k]), m counting the output pixels of all images.
//
// Layout:  x channels-last in memory; w (groups K, taps C) dense; y and residual by steps along batch and space, their channels dense.
//          A block takes tiles of kTileM pixels x kTileN channels, one after another. Of its three warpgroups the first gathers: thread t
//          fills chunk t % 8 (16 bytes) of every 16th row of both operands' panels (wgmma.cuh), through a ring of kStages. The other two
//          multiply, each one half of the tile's rows, and write it from registers, four neighbouring lanes 64 bytes of a row.
// Needs:   sm_90a; C and K of a group multiples of 8, pointers aligned to 16 bytes; taps along the three axes at most 31 together.
// Bound:   the matrix units, or the second-level cache where K is small. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/barrier.cuh"
#include "dnnarray/gather.cuh"
#include "dnnarray/vec.cuh"
#include "dnnarray/wgmma.cuh"

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
  static constexpr bool kCached = false;
};
#define DNNARRAY_ENTRY conv_implicit_gemm_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kGroup = 128, kThreads = 3 * kGroup, kTileK = 64, kRow = 128, kChunks = 8;  // threads of a warpgroup, bytes and chunks of a row
constexpr int kRowsM = kTileM / 16, kRowsN = kTileN / 16, kMmas = kTileM / 128;
constexpr int kBytesM = kTileM * kRow, kBytesN = kTileN * kRow, kStage = kBytesM + kBytesN;

extern __shared__ char smem_memory[];

struct Arguments {
  const T *x, *w, *bias, *residual;
  R* y;
  Windows windows;
  long long tiles_m, tiles_n, groups, outs;
  long long y_n, y_d, y_h, y_w;
  float p, q;
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

struct Tile {
  long long m;
  int n, group;

  __device__ __forceinline__ static Tile of(const Arguments& a, long long i) {
    const Split by_n = split(i, static_cast<int>(a.tiles_n));
    const long long group = by_n.quotient / a.tiles_m;
    return {(by_n.quotient - group * a.tiles_m) * kTileM, by_n.rest * kTileN, static_cast<int>(group)};
  }
};

// --- the warpgroup that gathers ---------------------------------------------------------------------------------------

// The rows of the windows that this thread fills. Eight lanes fill the same ones, so each of them finds an eighth.
__device__ __forceinline__ void find_rows(const Arguments& a, const Tile& tile, WindowRow (&rows)[kRowsM]) {
  const int own = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
  for (int part = 0; part < kRowsM / kChunks; ++part) {
    const WindowRow mine = window_row(a.windows, tile.m + first + 16 * (part * kChunks + own));
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      rows[part * kChunks + i].base = __shfl_sync(0xffffffffu, mine.base, i, kChunks);
      rows[part * kChunks + i].mask = __shfl_sync(0xffffffffu, mine.mask, i, kChunks);
    }
  }
}

__device__ __forceinline__ void gather_tile(const Arguments& a, const Tile& tile, unsigned smem, const Barriers& barriers, Ring<kStages>& ring) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks, total = a.windows.total;
  const unsigned place = row * kRow + (chunk ^ row % 8) * 16;
  WindowRow rows[kRowsM];
  find_rows(a, tile, rows);
  const T* x = a.x + static_cast<long long>(tile.group) * a.windows.channels * 8;
  const T* w = a.w + ((static_cast<long long>(tile.group) * a.outs + tile.n + row) * total + chunk) * 8;
  const int last = static_cast<int>(a.outs) - tile.n - row;  // rows of the weight from this one on
  WindowChunk at = WindowChunk::of(a.windows, chunk);
  for (int k = chunk; k - chunk < total; k += kChunks, w += kTileK, at.advance(a.windows, kChunks)) {
    const unsigned stage = smem + ring.stage * kStage, bits = at.bits(a.windows);
    const int step = at.step(a.windows);
    barrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kRowsM; ++i) {
      const bool there = (rows[i].mask & bits) == bits;
      const T* from = x + (there ? static_cast<long long>(rows[i].base + step) * 8 : 0);
      copy_async<Config::kCached>(stage + place + i * 16 * kRow, from, there);
    }
    const T* from = w;
#pragma unroll
    for (int i = 0; i < kRowsN; ++i, from += 128ll * total) {
      const bool there = k < total && 16 * i < last;
      copy_async<false>(stage + kBytesM + place + i * 16 * kRow, there ? from : a.w, there);
    }
    barrier_arrive_after_copies(barriers.full + ring.stage * 8);
    ring.next();
  }
}

// --- the warpgroups that multiply -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(float (&sums)[kMmas][kTileN / 2], int blocks, int part, unsigned smem, const Barriers& barriers,
                                              Ring<kStages>& ring) {
  unsigned before = 0;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    barrier_wait(barriers.full + ring.stage * 8, ring.parity);
    fence_async();
    wgmma_fence();
    const unsigned long long b = panel(stage + kBytesM);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const unsigned long long a = panel(stage + (part * kMmas + i) * 64 * kRow);
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<T, false, false, kTileN>::run(sums[i], a + 2 * k, b + 2 * k);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && threadIdx.x % kGroup == 0) barrier_arrive(before);
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait<0>();
  if (threadIdx.x % kGroup == 0) barrier_arrive(before);
}

__device__ __forceinline__ unsigned packed(float low, float high) {
  const Vec<R, 2> pair = {{narrow<R>(low), narrow<R>(high)}};
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Pair i of lane q of four becomes pair q of lane i: 8 columns in a row for each lane.
__device__ __forceinline__ void transpose_pairs(unsigned (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

// What an element becomes behind the product.
__device__ __forceinline__ float finished(const Arguments& a, float sum) { return Config::Activation::forward(sum, a.p, a.q); }

// One row of a tile: 32 columns at a time.
__device__ __forceinline__ void write_row(const Arguments& a, const float (&sums)[kTileN / 2], int half, const Tile& tile, long long at, bool there) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < kTileN / 32; ++j) {
    float v[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = tile.n + (4 * j + i) * 8 + q * 2;
      const long long channel = tile.group * a.outs + n;
      const bool inside = there && n < a.outs;
      v[i][0] = sums[(4 * j + i) * 4 + half * 2], v[i][1] = sums[(4 * j + i) * 4 + half * 2 + 1];
      if (Config::kBias && inside) {
        const Vec<T, 2> bias = load<T, 2>(a.bias + channel);
        v[i][0] += widen(bias.at[0]), v[i][1] += widen(bias.at[1]);
      }
      if (Config::kResidual && inside) {
        const Vec<T, 2> residual = load<T, 2>(a.residual + at + channel);
        v[i][0] += widen(residual.at[0]), v[i][1] += widen(residual.at[1]);
      }
      v[i][0] = finished(a, v[i][0]), v[i][1] = finished(a, v[i][1]);
      if constexpr (sizeof(R) == 4) {
        if (inside) store(a.y + at + channel, Vec<R, 2>{{narrow<R>(v[i][0]), narrow<R>(v[i][1])}});
      }
    }
    if constexpr (sizeof(R) == 2) {
      unsigned pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = packed(v[i][0], v[i][1]);
      transpose_pairs(pairs);
      const int n = tile.n + (4 * j + q) * 8;
      if (there && n < a.outs) {
        store(reinterpret_cast<unsigned*>(a.y + at + tile.group * a.outs + n), Vec<unsigned, 4>{{pairs[0], pairs[1], pairs[2], pairs[3]}});
      }
    }
  }
}

__device__ __forceinline__ void write_tile(const Arguments& a, float (&sums)[kMmas][kTileN / 2], const Tile& tile, int part) {
  const int in_group = threadIdx.x % kGroup, row = in_group / 32 * 16 + in_group % 32 / 4;
  const ConvAxis &h = a.windows.axes.h, &w = a.windows.axes.w;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long m = tile.m + (part * kMmas + i) * 64 + row + half * 8;
      const Split by_w = split(m, w.out), by_h = split(by_w.quotient, h.out), by_d = split(by_h.quotient, a.windows.axes.d.out);
      const long long at = by_d.quotient * a.y_n + by_d.rest * a.y_d + by_h.rest * a.y_h + by_w.rest * a.y_w;
      write_row(a, sums[i], half, tile, at, m < a.windows.rows);
    }
}

// x_n ... x_w are steps of x in chunks of 8 elements, y_n ... y_w steps of y in elements; `channels` of a group in chunks.
extern "C" __global__ void __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
    long long rows, long long channels, long long total, long long tiles_m, long long tiles_n, long long groups, long long outs, long long x_n,
    long long x_d, long long x_h, long long x_w, long long y_n, long long y_d, long long y_h, long long y_w, long long d0, long long d1,
    long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2, double p, double q) {
  const Windows windows = {{{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}}, rows, static_cast<int>(channels), static_cast<int>(total),
                           static_cast<int>(x_n), static_cast<int>(x_d), static_cast<int>(x_h), static_cast<int>(x_w)};
  const Arguments a = {x, weight, bias, residual, y, windows, tiles_m, tiles_n, groups, outs, y_n, y_d, y_h, y_w, float(p), float(q)};
  const unsigned smem = (smem_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage;
  const Barriers barriers = {first, first + kStages * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(barriers.full + i * 8, kGroup);
      barrier_init(barriers.empty + i * 8, 2);
    }
    barrier_init_done();
  }
  __syncthreads();
  const long long tiles = tiles_m * tiles_n * groups;
  const int part = static_cast<int>(threadIdx.x) / kGroup - 1;
  Ring<kStages> ring;
  if (part < 0) {
    give_registers<72>();
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) gather_tile(a, Tile::of(a, i), smem, barriers, ring);
  } else {
    take_registers<216>();
    float sums[kMmas][kTileN / 2];
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile tile = Tile::of(a, i);
      multiply_tile(sums, static_cast<int>((total + kChunks - 1) / kChunks), part, smem, barriers, ring);
      write_tile(a, sums, tile, part);
    }
  }
}
