// The same elements in another order of the axes: y[i] = x[place(i)].
//
// Layout:  Both are dense. A thread owns one element of y, so that stores are coalesced.
// Needs:   At most five axes, where neighbours that stay neighbours count as one.
// Bound:   Memory, and the caches for the reads out of order.

#include "dnnarray/core/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  dnnarray::Strided place;
};
#define DNNARRAY_ENTRY reorder_default
#endif

using namespace dnnarray;
using T = Config::Element;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i < a.size) y[i] = x[a.place.at(i)];
}
