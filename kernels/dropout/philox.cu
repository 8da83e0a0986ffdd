// y = x m with m = 1 / (1 - p) where the element's random number says keep, else 0; the same for the gradient.
//
// Layout:  x and y are dense and lie in the same order. Numbers are counted in C order: with kPermuted the place of an
//          element in it is computed from its place in memory. A thread owns one vector of kVector elements (one
//          element where permuted).
// Needs:   Pointers are aligned to kVector elements.
// Bound:   Memory: x is read once, y is written once; the ten rounds of Philox serve four elements.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/core/philox.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPermuted = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  unsigned long long seed;
  unsigned long long offset;
  unsigned threshold;
  double scale;
  dnnarray::Strided place;
  long long size;
};
#define DNNARRAY_ENTRY dropout_philox_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int V = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long n = a.size;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * V;
  if (i >= n) return;
  const Keep<V, A> keep = {a.seed, a.offset, a.threshold, A(a.scale)};
  A factor[V];
  if (i + V <= n) {
    const Vec<T, V> reg_x = load<T, V>(x + i);
    keep.factors(Config::kPermuted ? a.place.at(i) : i, factor);
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
