// out = sum of n numbers, over the sum of as many others (kWeighted) or over `divisor`. 0 / 0 is NaN, the mean of
// nothing.
//
// Layout:  flat, one block; the order of the sum depends on n alone.
// Bound:   latency; longer arrays come here as the partial sums of sums.cu.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kWeighted = true;
  static constexpr int kThreads = 1024;
};
struct Arguments {
  long long size;
  double divisor;
};
#define DNNARRAY_ENTRY loss_mean_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const A* __restrict__ values, const A* __restrict__ weights, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  __shared__ A shared[2 * Config::kThreads / kWarp];
  values = after_previous_kernel(values), weights = after_previous_kernel(weights);
  A sum = A(0), total = A(0);
#pragma unroll 8
  for (long long i = threadIdx.x; i < a.size; i += Config::kThreads) {
    sum += values[i];
    if constexpr (Config::kWeighted) total += weights[i];
  }
  block_reduce<Config::kThreads>(sum, Sum(), total, Sum(), shared);
  if (threadIdx.x == 0) *out = narrow<T>(sum / (Config::kWeighted ? total : A(a.divisor)));
}
