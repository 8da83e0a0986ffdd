// A copy between two memories of up to five axes, with a change of type: target[i] = source[i].
//
// Layout:  both by strides, which may be negative; a thread owns one element, the last axis running fastest.
// Needs:   nothing.
// Bound:   memory, where one of both runs along the last axis.

#include "dnnarray/core/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Target = float;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY rearrange_default
#endif

using namespace dnnarray;

// A value of any type in the arithmetic of the target.
template <typename T, typename S>
__device__ __forceinline__ T converted(S x) {
  return narrow<T>(arithmetic_t<T>(widen(x)));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(
    const Config::Source* __restrict__ source, Config::Target* __restrict__ target, long long n, long long n1, long long n2, long long n3,
    long long n4, long long s0, long long s1, long long s2, long long s3, long long s4, long long t0, long long t1, long long t2,
    long long t3, long long t4) {
  const Strided from = {n1, n2, n3, n4, s0, s1, s2, s3, s4}, to = {n1, n2, n3, n4, t0, t1, t2, t3, t4};
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i < n) target[to.at(i)] = converted<Config::Target>(source[from.at(i)]);
}
