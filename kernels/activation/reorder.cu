// The same elements in another order of the axes: y[i] = x[place(i)].
//
// Layout:  both dense. A thread owns one element of y, so that writing is coalesced.
// Needs:   at most five axes, neighbours that stay neighbours counted as one.
// Bound:   memory, and the caches for the reads out of order.

#include "dnnarray/core/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY activation_reorder_default
#endif

using namespace dnnarray;
using T = Config::Element;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long n, long long n1, long long n2, long long n3, long long n4,
                   long long s0, long long s1, long long s2, long long s3, long long s4) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i < n) y[i] = x[Strided{n1, n2, n3, n4, s0, s1, s2, s3, s4}.at(i)];
}
