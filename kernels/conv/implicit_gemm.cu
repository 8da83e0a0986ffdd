// Convolution as one matrix product whose left operand, the windows, is gathered on the way into shared memory: y[m, k]
// = f(sum over taps and c of x[window m at tap, c] * w[k, tap, c] + bias[k] + residual[m, k]), m counting the output
// pixels of all images.
//
// Layout:  x channels-last in memory; w (groups K, taps C) dense; y and residual by steps along batch and space, their
//          channels dense. A block owns a tile of kTileM pixels x kTileN channels; rows of 128 bytes in shared memory,
//          16-byte chunk j of row r at j ^ r % 8. Thread t fills chunk t % 8 of every 32nd row of both operands. A warp
//          multiplies 64 pixels x kWarpN channels.
// Needs:   sm_80; C of a group a multiple of a chunk, K of 8, pointers aligned to 16 bytes; taps along the axes at most
//          31 together.
// Bound:   the tensor cores, or the L2 where K is small. Half types are summed in float32, float32 is rounded to TF32.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "conv/im2col.cuh"
#include "dnnarray/mma/warp.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
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
  static constexpr int kStages = 3;
  static constexpr int kWarpN = 64;
  static constexpr int kBlocks = 2;
};
struct Arguments {
  long long rows;
  int channels;
  int total;
  int tiles_m;
  int tiles_n;
  int outs;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_implicit_gemm_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kWarpN = Config::kWarpN, kWarpsN = kTileN / kWarpN, kWarps = kTileM / 64 * kWarpsN,
              kThreads = kWarps * 32;
constexpr int kRow = 128, kChunks = 8, kStep = kThreads / kChunks, kRowsM = kTileM / kStep, kRowsN = kTileN / kStep;
constexpr int kBytesM = kTileM * kRow, kStage = (kTileM + kTileN) * kRow, kChunk = 16 / sizeof(T);

extern __shared__ char smem_memory[];

struct Operands {
  const T *x, *w;
  Windows windows;
  Target<T, R> target;
};

// What a thread fills: its chunk of some rows of the windows and of the weight, block after block along the columns.
struct Gather {
  WindowRow rows[kRowsM];
  WindowChunk at;
  const T *x, *w;
  int left, rows_left;  // chunks and rows of the weight from this thread's first on
  unsigned place;

  __device__ __forceinline__ Gather(const Operands& a, long long m, int n, int group) {
    const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
#pragma unroll
    for (int i = 0; i < kRowsM; ++i) rows[i] = window_row(a.windows, m + row + kStep * i);
    at = WindowChunk::of(a.windows, chunk);
    x = a.x + static_cast<long long>(group) * a.windows.channels * kChunk;
    w = a.w + ((static_cast<long long>(group) * a.target.outs + n + row) * a.windows.total + chunk) * kChunk;
    left = a.windows.total - chunk;
    rows_left = a.target.outs - n - row;
    place = row * kRow + (chunk ^ row % 8) * 16;
  }

  __device__ __forceinline__ void fill(const Operands& a, unsigned stage) {
    const unsigned bits = at.bits(a.windows);
    const int step = at.step(a.windows);
#pragma unroll
    for (int i = 0; i < kRowsM; ++i) {
      const bool there = (rows[i].mask & bits) == bits;
      const T* from = x + (there ? static_cast<long long>(rows[i].base + step) * kChunk : 0);
      cp_async_cg(stage + place + i * kStep * kRow, from, there);
    }
    const T* from = w;
#pragma unroll
    for (int i = 0; i < kRowsN; ++i, from += static_cast<long long>(kStep) * kChunk * a.windows.total) {
      const bool there = left > 0 && kStep * i < rows_left;
      cp_async_cg(stage + kBytesM + place + i * kStep * kRow, there ? from : a.w, there);
    }
    at.advance(a.windows, kChunks);
    left -= kChunks;
    w += kChunks * kChunk;
  }
};

// One stage: 64 x kWarpN sums of this warp, in products of 16 x 8.
__device__ __forceinline__ void multiply(float (&sums)[4][kWarpN / 2], unsigned stage, int warp_m, int warp_n) {
  const int lane = threadIdx.x % 32;
  const int row_a = warp_m * 64 + lane % 16, row_b = warp_n * kWarpN + lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    unsigned b[kWarpN / 16][4];
#pragma unroll
    for (int j = 0; j < kWarpN / 16; ++j) {
      ldmatrix_x4(stage + kBytesM + (row_b + 16 * j) * kRow + ((2 * k + lane / 8 % 2) ^ row_b % 8) * 16, b[j]);
      Mma<T>::round(b[j]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned a[4];
      ldmatrix_x4(stage + (row_a + 16 * i) * kRow + ((2 * k + lane / 16) ^ row_a % 8) * 16, a);
      Mma<T>::round(a);
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j)
        Mma<T>::add(sums[i] + 4 * j, a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// The strides of x count chunks, those of y elements; `channels` of a group and `total` of a row in chunks.
extern "C" __global__ void __launch_bounds__(kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, R* __restrict__ y, const __grid_constant__ Arguments a) {
  const Operands operands = {x, weight, windows_of(a), target_of(bias, residual, y, a)};
  const Windows& windows = operands.windows;
  const Target<T, R>& target = operands.target;
  const unsigned smem = (shared_address(smem_memory) + 127) & ~127u;
  const Split by_n = split(blockIdx.x, static_cast<int>(a.tiles_n)),
              by_m = split(by_n.quotient, static_cast<int>(a.tiles_m));
  const int group = static_cast<int>(by_m.quotient), n = by_n.rest * kTileN,
            blocks = (windows.total + kChunks - 1) / kChunks;
  const long long m = static_cast<long long>(by_m.rest) * kTileM;
  const int warp = threadIdx.x / 32, warp_m = warp / kWarpsN, warp_n = warp % kWarpsN;

  Gather gather(operands, m, n, group);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < blocks) gather.fill(operands, smem + i * kStage);
    cp_async_commit_group();
  }
  float sums[4][kWarpN / 2] = {};
  for (int block = 0; block < blocks; ++block) {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    if (block + kStages - 1 < blocks) gather.fill(operands, smem + (block + kStages - 1) % kStages * kStage);
    cp_async_commit_group();
    multiply(sums, smem + block % kStages * kStage, warp_m, warp_n);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long at_m = m + warp_m * 64 + i * 16 + threadIdx.x % 32 / 4 + half * 8;
      const long long at = target.row(windows.axes, at_m);
      write_row<Config, kWarpN>(target, sums[i], half, group, n + warp_n * kWarpN, at, at_m < windows.rows);
    }
}
