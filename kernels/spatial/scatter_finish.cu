// The sums of scatter.cuh as elements: y[i] = sums[i], rounded.
//
// Layout:  flat; a thread owns one element.
// Bound:   memory.

#include "spatial/scatter.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kFixed = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long bits;
};
#define DNNARRAY_ENTRY spatial_scatter_finish_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const void* __restrict__ sums, const unsigned char* __restrict__ flags,
                   const unsigned long long* __restrict__ largest, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.size) return;
  if constexpr (Config::kFixed) {
    A value = A(static_cast<double>(static_cast<const long long*>(sums)[i]) * FixedScale(largest, a.bits).down);
    const int flag = flags[i];
    if (flag == kPositive) value = infinity(A(0));
    if (flag == kNegative) value = -infinity(A(0));
    if (flag >= kUndefined || flag == (kPositive | kNegative)) value = quiet_nan(A(0));
    y[i] = narrow<T>(value);
  } else {
    y[i] = narrow<T>(static_cast<const A*>(sums)[i]);
  }
}
