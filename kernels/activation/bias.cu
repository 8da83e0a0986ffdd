// y = f(x + bias[c] + residual), f an activation.
//
// Layout:  x, residual and y are outer x channels x inner in memory. A thread owns one vector of kVector elements.
// Needs:   pointers aligned to kVector elements; kChannel says how the channel runs along a vector (channels.cuh).
// Bound:   memory: x and residual read once, y written once.

#include "dnnarray/activation.cuh"
#include "dnnarray/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Relu;
  static constexpr bool kResidual = false;
  static constexpr int kChannel = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY activation_bias_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Arguments {
  const T *x, *bias, *residual;
  T* y;
  ChannelView view;
  A p, q;
};

template <int N>
__device__ __forceinline__ void run(const Arguments& a, long long i) {
  const Vec<T, N> reg_x = load<T, N>(a.x + i);
  Vec<T, N> reg_residual;
  if constexpr (Config::kResidual) reg_residual = load<T, N>(a.residual + i);
  A bias[N], value[N], residual[N];
  load_parameters<N, Config::kChannel>(a.bias, i, a.view, bias);
  widen_all(value, reg_x);
  if constexpr (Config::kResidual) widen_all(residual, reg_residual);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A z = value[j] + bias[j];
    if constexpr (Config::kResidual) z += residual[j];
    value[j] = Config::Activation::forward(z, a.p, a.q);
  }
  store(a.y + i, narrow_all<T, N>(value));
}

// `residual` is `x` where there is none.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ bias, const T* __restrict__ residual, T* __restrict__ y, long long n,
                   DNNARRAY_CHANNELS, double p, double q) {
  const Arguments a = {x, bias, residual, y, DNNARRAY_CHANNELS_VALUES, A(p), A(q)};
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= n) {
    run<Config::kVector>(a, i);
  } else {
    for (long long j = i; j < n; ++j) run<1>(a, j);
  }
}
