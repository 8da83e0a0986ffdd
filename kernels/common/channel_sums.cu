// The first stage of out[c] = sum of x over all but the channel (channels.cuh); partial_sums.cu is the second.
//
// Layout:  x is outer x channels x inner in memory.
// Needs:   kColumns 0: inner a multiple of kVector; else channels x inner; the pointer aligned to kVector elements.
// Bound:   memory: x read once.

#include "dnnarray/core/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kColumns = 32;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long outer;
  long long channels;
  long long inner;
  long long splits;
};
#define DNNARRAY_ENTRY common_channel_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

struct Body {
  const T* x;

  template <int N>
  using Inputs = Vec<T, N>;

  template <int N>
  __device__ __forceinline__ Vec<T, N> read(long long i) const {
    return load<T, N>(x + i);
  }

  template <int N>
  __device__ __forceinline__ void run(long long, const Vec<T, N>& in, const A (&)[N], A (&terms)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) terms[j] = widen(in.at[j]);
  }
};

// The parameter that sum_channels offers beside x is not used here: its loads vanish.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, A* __restrict__ partial, const __grid_constant__ Arguments a) {
  sum_channels<Config::kVector, Config::kThreads, Config::kColumns>(Body{x}, x, partial, a.outer, a.channels, a.inner,
                                                                    a.splits);
}
