// y[i, k] = 1 where k is indices[i], else 0; a row of zeros where the index names no class.
//
// Layout:  y (count, classes) int64 in C order; a thread owns two neighbours.
// Needs:   y aligned to 16 bytes, or kVector 1.
// Bound:   memory: y written once.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Index = long long;
  static constexpr int kVector = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY spatial_one_hot_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Index* __restrict__ gmem_indices, long long* __restrict__ gmem_y, long long total, long long classes) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= total) return;
  Vec<long long, kVector> reg_y;
  const Split first = split(i, static_cast<int>(classes));
  long long row = first.quotient;
  int k = first.rest;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    reg_y.at[j] = i + j < total && static_cast<long long>(gmem_indices[row]) == k;
    if (++k == classes) k = 0, ++row;
  }
  if (i + kVector <= total) {
    store(gmem_y + i, reg_y);
  } else {
    for (int j = 0; i + j < total; ++j) gmem_y[i + j] = reg_y.at[j];
  }
}
