// The gradients of prelu: dx = g where x > 0, else w[c] g; and the first stage of dw[c], the sum of g x over the other elements of the
// channel (channels.cuh).
//
// Layout:  all arrays are outer x channels x inner in memory.
// Needs:   kColumns 0: inner a multiple of kVector; else inner 1 and channels a multiple of kVector; pointers aligned to kVector elements.
// Bound:   memory: g and x read once, dx written once.

#include "dnnarray/activation.cuh"
#include "dnnarray/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kColumns = 0;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY activation_prelu_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Body {
  const T *g, *x;
  T* dx;

  template <int N>
  __device__ __forceinline__ void run(long long i, const A (&slope)[N], A (&terms)[N]) const {
    const Vec<T, N> reg_g = load<T, N>(g + i), reg_x = load<T, N>(x + i);
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A source = widen(reg_g.at[j]), value = widen(reg_x.at[j]);
      out.at[j] = narrow<T>(LeakyRelu::gradient(source, value, slope[j], A(0)));
      terms[j] = value > A(0) ? A(0) : source * value;
    }
    store(dx + i, out);
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ dx, A* __restrict__ partial,
                   long long outer, long long channels, long long inner, long long splits) {
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(Body{g, x, dx}, w, partial, outer, channels, inner, splits);
}
