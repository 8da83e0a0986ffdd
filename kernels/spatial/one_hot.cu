// y[i, k] = 1 where k is indices[i], else 0; a row of zeros where the index names no class.
//
// Layout:  y (count, classes) int64 in C order; a thread owns kCount vectors of kVector neighbours (two or one),
//          kThreads apart.
// Needs:   y aligned to 16 bytes, or kVector 1.
// Bound:   memory: y written once.

#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Index = long long;
  static constexpr int kVector = 2;
  static constexpr int kCount = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  long long classes;
};
#define DNNARRAY_ENTRY spatial_one_hot_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector, kCount = Config::kCount, kThreads = Config::kThreads;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Index* __restrict__ indices, long long* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long first = (static_cast<long long>(blockIdx.x) * (kThreads * kCount) + threadIdx.x) * kVector;
  Vec<long long, kVector> reg_y[kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const long long i = first + c * (kThreads * kVector);
    if (i >= a.total) break;
    const Split place = split(i, static_cast<int>(a.classes));
    long long index = static_cast<long long>(indices[place.quotient]);
    int k = place.rest;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      reg_y[c].at[j] = index == k;
      if (++k == a.classes && j + 1 < kVector && i + j + 1 < a.total) {
        k = 0;
        index = static_cast<long long>(indices[place.quotient + 1]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const long long i = first + c * (kThreads * kVector);
    if (i + kVector <= a.total) {
      store(y + i, reg_y[c]);
    } else if (i < a.total) {
      y[i] = reg_y[c].at[0];
    }
  }
}
