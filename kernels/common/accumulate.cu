// y[i] += x[i], over flat memory.
//
// Layout:  Flat. A thread owns one vector of kVector elements.
// Needs:   Pointers are aligned to kVector elements.
// Bound:   Memory.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long size;
};
#define DNNARRAY_ENTRY accumulate_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long n = a.size;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i + kVector <= n) {
    const Vec<T, kVector> reg_x = load<T, kVector>(x + i);
    Vec<T, kVector> reg_y = load<T, kVector>(y + i);
#pragma unroll
    for (int v = 0; v < kVector; ++v) reg_y.at[v] += reg_x.at[v];
    store(y + i, reg_y);
  } else {
    for (long long j = i; j < n; ++j) y[j] += x[j];
  }
}
