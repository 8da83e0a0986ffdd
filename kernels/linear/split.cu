// The parts of a float32 matrix that tensor cores multiply: y = (high, low, high) of the left factor, (high, high, low) of the right one, side
// by side along the axis that a product sums over. Their product is then one long sum of high by high, low by high and high by low parts, each
// exact in float32; what is left out is low by low, 2^-22 of the whole.
//
// An infinity or a NaN has a high part alone, in the first copy: times the rest of a finite number it would become NaN.
//
// Layout:  x dense, rows x columns; y rows x (3, columns) (step: 3 columns, copy: columns) or (3, rows) x columns. A thread owns one vector.
// Needs:   columns a multiple of kVector, pointers aligned.
// Bound:   memory: x read once, y written once: three times x.

#include "dnnarray/tf32.cuh"
#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kRight = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY linear_split_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ y, long long size,
                                                                              long long columns, long long step, long long copy) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= size) return;
  const Vec<float, kVector> reg = load<float, kVector>(x + i);
  Vec<float, kVector> first, low, high;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const Parts parts = parts_of(reg.at[j]);
    first.at[j] = parts.high;
    low.at[j] = parts.low;
    high.at[j] = parts.finite ? parts.high : 0.0f;
  }
  const Split at = split(i, static_cast<int>(columns));
  float* to = y + at.quotient * step + at.rest;
  store(to, first);
  store(to + copy, Config::kRight ? high : low);
  store(to + 2 * copy, Config::kRight ? low : high);
}
