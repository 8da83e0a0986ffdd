// The gradients of f(x + bias[c] + residual): dx = dresidual = f'(g, x + bias[c] + residual), and the first stage of
// dbias[c], the sum of dx over all but the channel (channels.cuh).
//
// Layout:  all arrays are outer x channels x inner in memory.
// Needs:   kColumns 0: inner a multiple of kVector; else channels x inner; pointers aligned to kVector elements.
// Bound:   memory: each input read once, each output written once. Without an activation x, bias and residual are not
//          read.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Relu;
  static constexpr bool kResidual = false;
  static constexpr int kColumns = 32;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long outer;
  long long channels;
  long long inner;
  long long splits;
  double p;
  double q;
};
#define DNNARRAY_ENTRY activation_bias_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Body {
  const T *g, *x, *residual;
  T *dx, *dresidual;
  A p, q;

  template <int N>
  struct Inputs {
    Vec<T, N> g, x, residual;
  };

  template <int N>
  __device__ __forceinline__ Inputs<N> read(long long i) const {
    Inputs<N> in;
    in.g = load<T, N>(g + i);
    in.x = load<T, N>(x + i);
    if constexpr (Config::kResidual) in.residual = load<T, N>(residual + i);
    return in;
  }

  template <int N>
  __device__ __forceinline__ void run(long long i, const Inputs<N>& in, const A (&bias)[N], A (&terms)[N]) const {
    A source[N], value[N], residual[N];
    widen_all(source, in.g);
    widen_all(value, in.x);
    if constexpr (Config::kResidual) widen_all(residual, in.residual);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      A z = value[j] + bias[j];
      if constexpr (Config::kResidual) z += residual[j];
      terms[j] = Config::Activation::gradient(source[j], z, p, q);
    }
    const Vec<T, N> out = narrow_all<T, N>(terms);
    if (dx) store(dx + i, out);
    if (Config::kResidual && dresidual) store(dresidual + i, out);
  }
};

// `dx` and `dresidual` are null where they are not wanted.
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 8)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ dx, T* __restrict__ dresidual,
                   A* __restrict__ partial, const __grid_constant__ Arguments a) {
  const Body body = {grad, x, residual, dx, dresidual, A(a.p), A(a.q)};
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(body, bias, partial, a.outer, a.channels, a.inner,
                                                                    a.splits);
}
