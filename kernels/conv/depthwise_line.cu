// Depthwise convolution of lines: y[n, k, p] = f(sum over s of x[n, k / m, p + s - before] * w[k, s] + bias[k] + residual). The input gradient is
// the same with the weights turned round.
//
// Layout:  the one spatial axis innermost in memory, w (K, taps). A block has a part of one line; a thread owns kRun vectors of neighbouring outputs,
//          a block's width apart, and asks for all pieces of 16 bytes that they read before it computes. Pieces of neighbours are the same: the
//          first-level cache serves them.
// Needs:   lines of x and y and their distances in whole pieces, pointers aligned to 16 bytes; a window of kSide, stride and dilation of 1; windows
//          begin kShift elements behind the beginning of a piece.
// Bound:   memory: x and y once. Sums in float32.

#include "dnnarray/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 5;
  static constexpr int kShift = 6;
};
#define DNNARRAY_ENTRY conv_depthwise_line_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kShift = Config::kShift, kRun = 2, kMostThreads = 128, kVector = 16 / sizeof(T);
constexpr int kWide = kVector - 1 + kSide;                         // inputs of a vector of outputs
constexpr int kPieces = (kShift + kWide + kVector - 1) / kVector;  // that hold them
using Pieces = Wordwise<T, kVector>[kPieces];

__device__ __forceinline__ void load_pieces(Pieces& pieces, const T* line, int first, int width) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int at = first + i * kVector;
    const bool there = static_cast<unsigned>(at) < static_cast<unsigned>(width);
    const uint4 v = load_or_zero(line + (there ? at : 0), there);
    pieces[i] = {v.x, v.y, v.z, v.w};
  }
}

__device__ __forceinline__ void add_up(float (&sum)[kVector], const Pieces& pieces, const float (&w)[kSide]) {
  float x[kPieces * kVector];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    float piece[kVector];
    widen_all(piece, pieces[i]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[i * kVector + j] = piece[j];
  }
#pragma unroll
  for (int s = 0; s < kSide; ++s) {
#pragma unroll
    for (int t = 0; t < kVector; ++t) sum[t] += x[kShift + t + s] * w[s];
  }
}

// Blocks count the parts of a line, then the lines (n, k).
extern "C" __global__ void __launch_bounds__(kMostThreads) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long channels, long long multiplier, long long flip, long long parts, long long width, long long out,
    long long before, long long x_n, long long x_c, long long y_n, long long y_c) {
  const Quotient by_part = divide(blockIdx.x, static_cast<int>(parts)), line = divide(by_part.quotient, static_cast<int>(channels));
  const int channel = line.rest, taken = multiplier == 1 ? channel : divide(channel, static_cast<int>(multiplier)).quotient;
  const int first = (by_part.rest * kRun * blockDim.x + threadIdx.x) * kVector, apart = blockDim.x * kVector;
  const T* x = gmem_x + line.quotient * x_n + taken * x_c;
  Pieces pieces[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    load_pieces(pieces[i], x, first + i * apart - static_cast<int>(before) - kShift, static_cast<int>(width));
  }
  float w[kSide];
#pragma unroll
  for (int s = 0; s < kSide; ++s) w[s] = widen(gmem_w[channel * kSide + (flip ? kSide - 1 - s : s)]);
  const float bias = gmem_bias ? widen(gmem_bias[channel]) : 0.0f;
  const long long y = line.quotient * y_n + channel * y_c;
  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{gmem_residual, gmem_y};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int p = first + i * apart;
    if (p >= out) break;
    float sum[kVector];
#pragma unroll
    for (int t = 0; t < kVector; ++t) sum[t] = bias;
    add_up(sum, pieces[i], w);
    finish.put(sum, y + p);
  }
}
