// A copy between two memories of up to five axes, with a change of type: target[i] = source[i].
//
// Layout:  Both lie by strides, which may be negative. A thread owns one element; the last axis runs fastest.
// Needs:   Nothing.
// Bound:   Memory, where one of both runs along the last axis.

#include "dnnarray/core/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Target = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long extents[4];
  long long read[5];
  long long written[5];
};
#define DNNARRAY_ENTRY rearrange_default
#endif

using namespace dnnarray;

// A value of any type in the arithmetic of the target.
template <typename T, typename S>
__device__ __forceinline__ T converted(S x) {
  return narrow<T>(arithmetic_t<T>(widen(x)));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Source* __restrict__ source, Config::Target* __restrict__ target,
                   const __grid_constant__ Arguments a) {
  const auto [n1, n2, n3, n4] = a.extents;
  const Strided from = {n1, n2, n3, n4, a.read[0], a.read[1], a.read[2], a.read[3], a.read[4]};
  const Strided to = {n1, n2, n3, n4, a.written[0], a.written[1], a.written[2], a.written[3], a.written[4]};
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i < a.size) target[to.at(i)] = converted<Config::Target>(source[from.at(i)]);
}
