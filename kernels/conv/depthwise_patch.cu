// Depthwise convolution of lines and of planes with small windows: y[n, k, p, q] = f(sum over r, s of x[n, k / m, p + r
// - before, q + s - before] * w[k, r, s] + bias[k] + residual). The input gradient is the same with the weights turned
// round.
//
// Layout:  the last spatial axis innermost in memory, w (K, taps). A thread owns a patch of kRows x kVector outputs, or
//          kRun of them a line apart by `across` vectors, and asks for all pieces of 16 bytes that they read before it
//          computes. Threads run along a row of patches, then down the plane, then through the planes: what neighbours
//          share comes from the first-level cache, and ptxas takes of pieces that are read for some elements those
//          alone.
// Needs:   rows of x and y and their distances in whole pieces, pointers aligned to 16 bytes; a window of kHigh x
//          kSide, strides and dilations of 1; windows begin kShift elements behind the beginning of a piece.
// Bound:   memory: x and y once. Sums in float32.

#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kHigh = 3;
  static constexpr int kSide = 3;
  static constexpr int kShift = 7;
  static constexpr int kRows = 4;
  static constexpr int kRun = 1;
};
struct Arguments {
  int planes;
  int channels;
  int multiplier;
  int flip;
  int across;
  int down;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_patch_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kHigh = Config::kHigh, kSide = Config::kSide, kShift = Config::kShift, kRows = Config::kRows,
              kRun = Config::kRun;
constexpr int kVector = 16 / sizeof(T), kMostThreads = 128;
constexpr int kReach = kRows + kHigh - 1;                          // rows that a patch reads
constexpr int kWide = kVector - 1 + kSide;                         // and elements of each
constexpr int kPieces = (kShift + kWide + kVector - 1) / kVector;  // in so many pieces
using Row = Wordwise<T, kVector>[kPieces];

// Extents and distances.
struct Problem {
  int height, width, out_height, out_width, before_h, before_w;
  long long x_h, y_h;
};

// From the row at `x`, which may be outside.
__device__ __forceinline__ void load_row(Row& row, const T* x, bool inside, int first, int width) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int at = first + i * kVector;
    const bool there = inside && static_cast<unsigned>(at) < static_cast<unsigned>(width);
    const uint4 v = ld_global_nc_v4_if(x + at, there);
    row[i] = {v.x, v.y, v.z, v.w};
  }
}

__device__ __forceinline__ void load_patch(Row (&rows)[kReach], const T* x, const Problem& a, int p, int q) {
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
    const int at = p - a.before_h + i;
    load_row(rows[i], x + at * a.x_h, static_cast<unsigned>(at) < static_cast<unsigned>(a.height),
             q - a.before_w - kShift, a.width);
  }
}

// What row i of a patch adds to the outputs whose windows it is in.
__device__ __forceinline__ void add_row(float (&sum)[kRows][kVector], const Row& row, int i,
                                        const float (&w)[kHigh][kSide]) {
  float x[kPieces * kVector];
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    float piece[kVector];
    widen_all(piece, row[k]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[k * kVector + j] = piece[j];
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int r = i - m;
    if (r < 0 || r >= kHigh) continue;
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
#pragma unroll
      for (int t = 0; t < kVector; ++t) sum[m][t] += x[kShift + t + s] * w[r][s];
    }
  }
}

template <bool kFlip>
__device__ __forceinline__ void load_weights(float (&w)[kHigh][kSide], const T* gmem) {
#pragma unroll
  for (int r = 0; r < kHigh; ++r) {
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
      const int tap = r * kSide + s;
      w[r][s] = widen(gmem[kFlip ? kHigh * kSide - 1 - tap : tap]);
    }
  }
}

// Threads count patches beside each other, then below each other, then planes (n, k).
extern "C" __global__ void __launch_bounds__(kMostThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Problem problem{a.axes.h.space,  a.axes.w.space,  a.axes.h.out,  a.axes.w.out,
                        a.axes.h.before, a.axes.w.before, a.x_strides.h, a.y_strides.h};
  const Quotient by_column = divide(blockIdx.x * blockDim.x + threadIdx.x, a.across),
                 by_row = divide(by_column.quotient, a.down);
  if (by_row.quotient >= a.planes) return;
  const Quotient image = divide(by_row.quotient, a.channels);
  const int channel = image.rest, taken = a.multiplier == 1 ? channel : divide(channel, a.multiplier).quotient;
  const int p = by_row.rest * kRows, q = by_column.rest * kVector, apart = a.across * kVector;
  const T* first = x + image.quotient * a.x_strides.n + taken * a.x_strides.c;
  Row rows[kRun][kReach];
#pragma unroll
  for (int k = 0; k < kRun; ++k) load_patch(rows[k], first, problem, p, q + k * apart);
  float w[kHigh][kSide];
  const T* own_w = weight + static_cast<long long>(channel) * (kHigh * kSide);
  if (a.flip) {
    load_weights<true>(w, own_w);
  } else {
    load_weights<false>(w, own_w);
  }
  const float begin_at = bias ? widen(bias[channel]) : 0.0f;
  const long long to = image.quotient * a.y_strides.n + channel * a.y_strides.c + p * problem.y_h + q;
  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{residual, y};
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    if (q + k * apart >= problem.out_width) break;
    float sum[kRows][kVector];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int t = 0; t < kVector; ++t) sum[m][t] = begin_at;
    }
#pragma unroll
    for (int r = 0; r < kReach; ++r) add_row(sum, rows[k][r], r, w);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (p + m < problem.out_height) finish.put(sum[m], to + m * problem.y_h + k * apart);
    }
  }
}
