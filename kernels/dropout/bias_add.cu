// y = m (x + bias[c]) + residual with m = 1 / (1 - p) where the element's random number says keep, else 0.
//
// Layout:  x, residual and y are outer x channels x inner in memory. Numbers are counted in C order: with kPermuted the
//          place of an element in it is computed from its place in memory. A thread owns one vector of kVector
//          elements.
// Needs:   Pointers are aligned to kVector elements (1 where permuted); kChannel says how the channel runs along a
//          vector (channels.cuh).
// Bound:   Memory: x and residual are read once, y is written once; the ten rounds of Philox serve four elements.

#include "dnnarray/core/channels.cuh"
#include "dnnarray/core/philox.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPermuted = false;
  static constexpr int kChannel = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  unsigned long long seed;
  unsigned long long offset;
  unsigned threshold;
  double scale;
  dnnarray::Strided place;
  long long size;
  dnnarray::ChannelView view;
};
#define DNNARRAY_ENTRY dropout_bias_add_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Operands {
  const T *x, *bias, *residual;
  T* y;
  ChannelView view;
  unsigned long long seed, offset;
  unsigned threshold;
  A scale;
  Strided place;
};

template <int N>
__device__ __forceinline__ void run(const Operands& o, long long i) {
  const Vec<T, N> reg_x = load<T, N>(o.x + i), reg_residual = load<T, N>(o.residual + i);
  A bias[N], factor[N], value[N], residual[N];
  load_parameters<N, Config::kChannel>(o.bias, i, o.view, bias);
  Keep<N, A>{o.seed, o.offset, o.threshold, o.scale}.factors(Config::kPermuted ? o.place.at(i) : i, factor);
  widen_all(value, reg_x);
  widen_all(residual, reg_residual);
#pragma unroll
  for (int j = 0; j < N; ++j) value[j] = (value[j] + bias[j]) * factor[j] + residual[j];
  store(o.y + i, narrow_all<T, N>(value));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ bias, const T* __restrict__ residual,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Operands o = {x, bias, residual, y, a.view, a.seed, a.offset, a.threshold, A(a.scale), a.place};
  const long long n = a.size;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  if (i + Config::kVector <= n) {
    run<Config::kVector>(o, i);
  } else {
    for (long long j = i; j < n; ++j) run<1>(o, j);
  }
}
