// The gradient of grid_sample by x: each output's gradient goes to its taps by their weights.
//
// Layout:  as grid_sample, with one channel at a time: g and the sums by strides, the sums in the memory order of x.
// Bound:   atomics in L2, one for each tap of each output.

#include "dnnarray/sampling.cuh"
#include "dnnarray/scatter.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr bool kChannelsLast = false;
  static constexpr bool kFixed = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY grid_sample_scatter_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = Axis<Config::kMode, Config::kPadding, Config::kCorners, A>;
constexpr int kMode = Config::kMode, kDeep = Config::kRank == 3 ? kMode : 1;

template <typename Sums>
__device__ __forceinline__ void scatter(const Sums& sums, A g, long long base, const Place& deep, const Place& down, const Place& across,
                                        const Strides& x) {
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
#pragma unroll
    for (int i = 0; i < kMode; ++i) {
#pragma unroll
      for (int j = 0; j < kMode; ++j) {
        A weight = down.weight[i] * across.weight[j];
        bool inside = down.inside[i] && across.inside[j];
        if (Config::kRank == 3) weight *= deep.weight[k], inside = inside && deep.inside[k];
        if (inside) sums.add(base + deep.index[k] * x.space[0] + down.index[i] * x.space[1] + across.index[j] * x.space[2], g * weight);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ grid, void* sums, unsigned* flags, const unsigned long long* largest,
                   long long bits, long long batch, long long channels, long long per, long long depth, long long height, long long width,
                   long long o, long long p, long long q, long long x_n, long long x_c, long long x_d, long long x_h, long long x_w,
                   long long y_n, long long y_c, long long y_o, long long y_p, long long y_q) {
  const long long chunks = (channels + per - 1) / per, places = o * p * q;
  long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= batch * places * chunks) return;
  const long long chunk = Config::kChannelsLast ? split(index, chunks) : 0;
  const long long own = Config::kChannelsLast ? index : split(index, batch * places);
  const long long first = (Config::kChannelsLast ? chunk : index) * per;
  long long n = own;
  const long long column = split(n, q), row = split(n, p), slice = split(n, o);

  const T* at = grid + own * Config::kRank;
  const Place across(widen(at[0]), width), down(widen(at[1]), height);
  const Place deep(Config::kRank == 3 ? widen(at[Config::kRank - 1]) : A(0), Config::kRank == 3 ? depth : 1);
  const Strides x{x_n, x_c, {x_d, x_h, x_w}};
  const T* source = g + n * y_n + slice * y_o + row * y_p + column * y_q;
  const long long end = first + per < channels ? first + per : channels;
  for (long long c = first; c < end; ++c) {
    const A value = widen(source[c * y_c]);
    const long long base = n * x.n + c * x.c;
    if constexpr (Config::kFixed) {
      const FixedSums fixed{static_cast<unsigned long long*>(sums), flags, FixedScale(largest, bits).up};
      scatter(fixed, value, base, deep, down, across, x);
    } else {
      scatter(FloatSums<A>{static_cast<A*>(sums)}, value, base, deep, down, across, x);
    }
  }
}
