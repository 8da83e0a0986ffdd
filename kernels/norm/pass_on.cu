// dx[i] = dresidual[i] = grad[i] over flat memory: the gradient of a sum alone.
//
// Layout:  any dense memory order, the same for all arrays. A thread owns one vector of kVector elements.
// Bound:   memory: one read, two writes.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long n;
};
#define DNNARRAY_ENTRY norm_pass_on_default
#endif

using namespace dnnarray;
using T = Config::Element;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, T* __restrict__ dx, T* __restrict__ dresidual,
                   const __grid_constant__ Arguments a) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= a.n) {
    const auto reg = load<T, Config::kVector>(grad + i);
    store(dx + i, reg);
    store(dresidual + i, reg);
  } else {
    for (long long j = i; j < a.n; ++j) dx[j] = dresidual[j] = grad[j];
  }
}
