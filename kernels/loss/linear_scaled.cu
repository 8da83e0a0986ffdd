// y[i] = grad x[i]: the gradients that a forward left on its tape, for a loss whose gradient is `grad`, rounded to the
// type of y.
//
// Layout:  flat. A thread owns one vector of kVector elements of y, and as many vectors of 16 bytes of x as these take.
// Needs:   x and y aligned to 16 bytes where kVector is above 1.
// Bound:   memory.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kVector = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long size;
};
#define DNNARRAY_ENTRY loss_linear_scaled_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLoad = kVector * sizeof(A) <= 16 ? kVector : 16 / sizeof(A);

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const A* __restrict__ x, const T* __restrict__ grad, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i + kVector <= a.size) {
    Vec<A, kLoad> reg_x[kVector / kLoad];
#pragma unroll
    for (int k = 0; k < kVector / kLoad; ++k) reg_x[k] = load<A, kLoad>(x + i + k * kLoad);
    const A by = widen(grad[0]);
    A product[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) product[v] = by * reg_x[v / kLoad].at[v % kLoad];
    store(y + i, narrow_all<T, kVector>(product));
  } else if (i < a.size) {
    const A by = widen(grad[0]);
    for (long long j = i; j < a.size; ++j) y[j] = narrow<T>(by * x[j]);
  }
}
