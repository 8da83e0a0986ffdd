// The gradients of prelu: dx = g where x > 0, else w[c] g; and the first stage of dw[c], the sum of g x over the other
// elements of the channel (channels.cuh).
//
// Layout:  all arrays are outer x channels x inner in memory.
// Needs:   kColumns 0: inner a multiple of kVector; else channels x inner; pointers aligned to kVector elements.
// Bound:   memory: g and x read once, dx written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kColumns = 0;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long outer;
  long long channels;
  long long inner;
  long long splits;
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
  struct Inputs {
    Vec<T, N> g, x;
  };

  template <int N>
  __device__ __forceinline__ Inputs<N> read(long long i) const {
    return {load<T, N>(g + i), load<T, N>(x + i)};
  }

  template <int N>
  __device__ __forceinline__ void run(long long i, const Inputs<N>& in, const A (&slope)[N], A (&terms)[N]) const {
    A source[N], value[N], result[N];
    widen_all(source, in.g);
    widen_all(value, in.x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      result[j] = LeakyRelu::gradient(source[j], value[j], slope[j], A(0));
      terms[j] = value[j] > A(0) ? A(0) : source[j] * value[j];
    }
    if (dx) store(dx + i, narrow_all<T, N>(result));
  }
};

// `dx` is null where only the sums are wanted.
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 8)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ weight,
                   T* __restrict__ dx, A* __restrict__ partial, const __grid_constant__ Arguments a) {
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(Body{grad, x, dx}, weight, partial, a.outer,
                                                                    a.channels, a.inner, a.splits);
}
