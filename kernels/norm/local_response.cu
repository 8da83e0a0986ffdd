// Local response norm: y = x * d^-beta with d = k + alpha_size * (sum of x^2 over a window of channels around each).
//
// Stages:  0 y; 1 terms = grad * x * d^(-beta - 1); 2 dx = grad * d^-beta - 2 * beta * alpha_size * x * (sum of terms
//          over the window turned round).
// Layout:  (outer, channels, inner) in memory, any of them 1; a thread owns one element. The neighbours of its window
//          lie `inner` apart, so that the warps of a block share them in the cache.
// Bound:   memory: x (and grad, terms) read once, the result written once; window loads come from the cache.

#include "dnnarray/core/dtype.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kStage = 0;
  static constexpr int kThreads = 256;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* terms;
  long long size;
  long long channels;
  long long inner;
  long long before;
  long long after;
  double k;
  double alpha_size;
  double beta;
};
#define DNNARRAY_ENTRY norm_local_response_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float power(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// d^-beta; the usual exponents by square roots.
__device__ __forceinline__ A inverse_power(A d, A beta) {
  if (beta == A(0.75)) return A(1) / (root(d) * root(root(d)));
  if (beta == A(0.5)) return A(1) / root(d);
  if (beta == A(1)) return A(1) / d;
  return power(d, -beta);
}

// The sum of f over the channels from c - before to c + after that exist.
template <typename F>
__device__ __forceinline__ A over_window(long long i, long long c, long long channels, long long inner,
                                         long long before, long long after, F f) {
  const long long first = c < before ? 0 : c - before, last = c + after < channels ? c + after : channels - 1;
  A sum = A(0);
#pragma unroll 4
  for (long long j = first; j <= last; ++j) sum += f(i + (j - c) * inner);
  return sum;
}

// `terms` is written by stage 1 and read by stage 2; null: grad and terms in stage 0, out in stage 1.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.size) return;
  const long long c = i / a.inner % a.channels;
  const auto square = [&](long long at) {
    const A v = widen(x[at]);
    return v * v;
  };
  const A d = A(a.k) + A(a.alpha_size) * over_window(i, c, a.channels, a.inner, a.before, a.after, square),
          here = widen(x[i]);
  const A scale = inverse_power(d, A(a.beta));
  if constexpr (Config::kStage == 0) {
    out[i] = narrow<T>(here * scale);
  } else if constexpr (Config::kStage == 1) {
    a.terms[i] = widen(grad[i]) * here * scale / d;
  } else {
    const A felt = over_window(i, c, a.channels, a.inner, a.after, a.before, [&](long long at) { return a.terms[at]; });
    out[i] = narrow<T>(widen(grad[i]) * scale - A(2 * a.beta * a.alpha_size) * here * felt);
  }
}
