// y[i] = x[i] rounded to the type of y, over flat memory.
//
// Layout:  Flat. A thread owns one vector of kVector elements.
// Needs:   Pointers are aligned to kVector elements of their types, at most 16 bytes of x.
// Bound:   Memory.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
};
#define DNNARRAY_ENTRY convert_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const A* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long n = a.size;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i + kVector <= n) {
    const Vec<A, kVector> reg_x = load<A, kVector>(x + i);
    store(y + i, narrow_all<T, kVector>(reg_x.at));
  } else {
    for (long long j = i; j < n; ++j) y[j] = narrow<T>(x[j]);
  }
}
