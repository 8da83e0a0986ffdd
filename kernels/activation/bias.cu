// y = f(x + bias[c] + residual), f an activation.
//
// Layout:  x, residual and y are outer x channels x inner in memory. A thread owns one vector of kVector elements.
// Needs:   Pointers are aligned to kVector elements; kChannel says how the channel runs along a vector (channels.cuh).
// Bound:   Memory: x and residual are read once, y is written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Relu;
  static constexpr bool kResidual = false;
  static constexpr int kChannel = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  dnnarray::ChannelView view;
  double p;
  double q;
};
#define DNNARRAY_ENTRY activation_bias_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Operands {
  const T *x, *bias, *residual;
  T* y;
  ChannelView view;
  A p, q;
};

template <int N>
__device__ __forceinline__ void run(const Operands& o, long long i) {
  const Vec<T, N> reg_x = load<T, N>(o.x + i);
  Vec<T, N> reg_residual;
  if constexpr (Config::kResidual) reg_residual = load<T, N>(o.residual + i);
  A bias[N], value[N], residual[N];
  load_parameters<N, Config::kChannel>(o.bias, i, o.view, bias);
  widen_all(value, reg_x);
  if constexpr (Config::kResidual) widen_all(residual, reg_residual);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A z = value[j] + bias[j];
    if constexpr (Config::kResidual) z += residual[j];
    value[j] = Config::Activation::forward(z, o.p, o.q);
  }
  store(o.y + i, narrow_all<T, N>(value));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ bias, const T* __restrict__ residual,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Operands o = {x, bias, residual, y, a.view, A(a.p), A(a.q)};
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= a.size) {
    run<Config::kVector>(o, i);
  } else {
    for (long long j = i; j < a.size; ++j) run<1>(o, j);
  }
}
