// y = x m with m = 1 / (1 - p) where the element's random number says keep, else 0; the same for the gradient.
//
// Layout:  dense memory, the same order for x and y. Numbers are counted in C order: with kPermuted the place of an element in it is
//          computed from its place in memory. A thread owns one vector of kVector elements (one element where permuted).
// Needs:   pointers aligned to kVector elements (kVector is 1 where they are not).
// Bound:   memory: x read once, y written once; the ten rounds of Philox serve four elements.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/philox.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPermuted = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY dropout_philox_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int V = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long n, unsigned long long seed, unsigned long long offset,
                   long long threshold, double scale, long long n1, long long n2, long long n3, long long n4, long long s0, long long s1,
                   long long s2, long long s3, long long s4) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * V;
  if (i >= n) return;
  const Keep<V, A> keep = {seed, offset, static_cast<unsigned>(threshold), A(scale)};
  A factor[V];
  if (i + V <= n) {
    const Vec<T, V> reg_x = load<T, V>(x + i);
    keep.factors(Config::kPermuted ? Strided{n1, n2, n3, n4, s0, s1, s2, s3, s4}.at(i) : i, factor);
    A value[V];
    widen_all(value, reg_x);
#pragma unroll
    for (int j = 0; j < V; ++j) value[j] *= factor[j];
    store(y + i, narrow_all<T, V>(value));
  } else {
    keep.factors(i, factor);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (i + j < n) y[i + j] = narrow<T>(widen(x[i + j]) * factor[j]);
    }
  }
}
