// The gradients of m (x + bias[c]) + residual: dx = m g, dresidual = g, and the first stage of dbias[c], the sum of dx over all but the
// channel (channels.cuh). The mask m is drawn again.
//
// Layout:  all arrays are outer x channels x inner in memory. Numbers are counted in C order: with kPermuted the place of an element in it
//          is computed from its place in memory.
// Needs:   kColumns 0: inner a multiple of kVector; else channels x inner; pointers aligned to kVector elements;
//          kVector 1 where permuted.
// Bound:   memory: g read once, dx and dresidual written once (kResidual; else it is left to another launch), each where it is not null.

#include "dnnarray/channels.cuh"
#include "dnnarray/philox.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPermuted = false;
  static constexpr bool kResidual = true;
  static constexpr int kColumns = 32;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
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
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ bias, T* __restrict__ dx, T* __restrict__ dresidual,
                   A* __restrict__ partial, long long outer, long long channels, long long inner, long long splits,
                   unsigned long long seed, unsigned long long offset, long long threshold, double scale, long long n1, long long n2,
                   long long n3, long long n4, long long s0, long long s1, long long s2, long long s3, long long s4) {
  const Body body = {g, dx, dresidual, seed, offset, static_cast<unsigned>(threshold), A(scale), {n1, n2, n3, n4, s0, s1, s2, s3, s4}};
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(body, bias, partial, outer, channels, inner, splits);
}
