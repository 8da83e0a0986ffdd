// The gradients of m (x + bias[c]) + residual: dx = m g, dresidual = g, and the first stage of dbias[c], the sum of dx
// over all but the channel (channels.cuh). The mask m is drawn again. A pointer is null where the result is not wanted.
//
// Layout:  All arrays are outer x channels x inner in memory. Numbers are counted in C order: with kPermuted the place
//          of an element in it is computed from its place in memory.
// Needs:   With kColumns 0 inner is a multiple of kVector, else channels x inner is; pointers are aligned to kVector
//          elements; kVector is 1 where permuted.
// Bound:   Memory: g is read once, dx is written once, and dresidual with kResidual; otherwise another launch writes
//          it.

#include "dnnarray/core/channels.cuh"
#include "dnnarray/core/philox.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPermuted = false;
  static constexpr bool kResidual = true;
  static constexpr int kColumns = 32;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long outer;
  long long channels;
  long long inner;
  long long splits;
  unsigned long long seed;
  unsigned long long offset;
  unsigned threshold;
  double scale;
  dnnarray::Strided place;
};
#define DNNARRAY_ENTRY dropout_bias_add_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Body {
  const T* g;
  T *dx, *dresidual;
  unsigned long long seed, offset;
  unsigned threshold;
  A scale;
  Strided place;

  template <int N>
  using Inputs = Vec<T, N>;

  template <int N>
  __device__ __forceinline__ Vec<T, N> read(long long i) const {
    return load<T, N>(g + i);
  }

  template <int N>
  __device__ __forceinline__ void run(long long i, const Vec<T, N>& reg_g, const A (&)[N], A (&terms)[N]) const {
    A factor[N];
    Keep<N, A>{seed, offset, threshold, scale}.factors(Config::kPermuted ? place.at(i) : i, factor);
    widen_all(terms, reg_g);
#pragma unroll
    for (int j = 0; j < N; ++j) terms[j] *= factor[j];
    if (dx) store(dx + i, narrow_all<T, N>(terms));
    if (Config::kResidual && dresidual) store(dresidual + i, reg_g);
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 6)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ bias, T* __restrict__ dx,
                   T* __restrict__ dresidual, A* __restrict__ partial, const __grid_constant__ Arguments a) {
  const Body body = {grad, dx, dresidual, a.seed, a.offset, a.threshold, A(a.scale), a.place};
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(body, bias, partial, a.outer, a.channels, a.inner,
                                                                    a.splits);
}
