// y = f(z + bias[c] + residual), f an activation: what follows a matrix product.
//
// Layout:  z, residual and y are outer x channels x inner in memory; z may be y. A thread owns one vector of kVector
//          elements.
// Needs:   pointers aligned to kVector elements; kChannel says how the channel runs along a vector (channels.cuh).
// Bound:   memory: z and residual read once, y written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Source = float;
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
#define DNNARRAY_ENTRY common_epilogue_default
#endif

using namespace dnnarray;
using T = Config::Element;
using S = Config::Source;
using A = arithmetic_t<T>;

template <int N>
__device__ __forceinline__ void run(const S* z, const T* bias, const T* residual, T* y, long long i,
                                    const ChannelView& view, A p, A q) {
  const Vec<S, N> reg_z = load_wide<S, N>(z + i);
  Vec<T, N> reg_residual, reg_y;
  if constexpr (Config::kResidual) reg_residual = load<T, N>(residual + i);
  A reg_bias[N] = {};
  if constexpr (Config::kBias) load_parameters<N, Config::kChannel>(bias, i, view, reg_bias);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A sum = widen(reg_z.at[j]) + reg_bias[j];
    if constexpr (Config::kResidual) sum += widen(reg_residual.at[j]);
    reg_y.at[j] = narrow<T>(Config::Activation::forward(sum, p, q));
  }
  store(y + i, reg_y);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const S* z, const T* __restrict__ bias, const T* __restrict__ residual, T* y,
                   const __grid_constant__ Arguments a) {
  const ChannelView view = a.view;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= a.size) {
    run<Config::kVector>(z, bias, residual, y, i, view, A(a.p), A(a.q));
  } else {
    for (long long j = i; j < a.size; ++j) run<1>(z, bias, residual, y, j, view, A(a.p), A(a.q));
  }
}
