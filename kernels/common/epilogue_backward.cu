// dz = g f'(z + bias[c] + residual), f an activation: the gradient in front of the activation that follows a matrix
// product.
//
// Layout:  g, z, residual and dz are outer x channels x inner in memory; z may be dz. A thread owns one vector of
//          kVector elements.
// Needs:   pointers aligned to kVector elements; kChannel says how the channel runs along a vector (channels.cuh).
// Bound:   memory: g, z and residual read once, dz written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = float;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
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
#define DNNARRAY_ENTRY common_epilogue_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using D = Config::Target;

template <int N>
__device__ __forceinline__ void run(const T* g, const A* z, const T* bias, const T* residual, D* dz, long long i,
                                    const ChannelView& view, A p, A q) {
  const Vec<A, N> reg_z = load_wide<A, N>(z + i);
  const Vec<T, N> reg_g = load<T, N>(g + i);
  Vec<T, N> reg_residual;
  Vec<D, N> reg_dz;
  if constexpr (Config::kResidual) reg_residual = load<T, N>(residual + i);
  A reg_bias[N] = {};
  if constexpr (Config::kBias) load_parameters<N, Config::kChannel>(bias, i, view, reg_bias);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A sum = reg_z.at[j] + reg_bias[j];
    if constexpr (Config::kResidual) sum += widen(reg_residual.at[j]);
    reg_dz.at[j] = narrow<D>(Config::Activation::gradient(widen(reg_g.at[j]), sum, p, q));
  }
  store_wide<D, N>(dz + i, reg_dz);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const A* z, const T* __restrict__ bias, const T* __restrict__ residual,
                   D* dz, const __grid_constant__ Arguments a) {
  const ChannelView view = a.view;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= a.size) {
    run<Config::kVector>(grad, z, bias, residual, dz, i, view, A(a.p), A(a.q));
  } else {
    for (long long j = i; j < a.size; ++j) run<1>(grad, z, bias, residual, dz, j, view, A(a.p), A(a.q));
  }
}
