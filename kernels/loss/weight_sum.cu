// out = the sum of n numbers, in the arithmetic type.
//
// Layout:  flat, one block; the order of the sum depends on n alone.
// Bound:   latency.

#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kThreads = 1024;
};
struct Arguments {
  long long size;
};
#define DNNARRAY_ENTRY loss_weight_sum_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ values, A* __restrict__ out, const __grid_constant__ Arguments a) {
  __shared__ A shared[Config::kThreads / kWarp];
  A sum = A(0);
  for (long long i = threadIdx.x; i < a.size; i += Config::kThreads) sum += widen(values[i]);
  sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) *out = sum;
}
