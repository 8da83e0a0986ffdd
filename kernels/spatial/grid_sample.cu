// y[n, c, p] = sum over taps of weight * x[n, c, tap], at the place that grid[n, p] names.
//
// Layout:  x and y by strides, three spatial axes (an image has a first one of extent 1); grid (N, *places, rank). A thread owns one place
//          and `per` channels of it. kChannelsLast: neighbouring threads have neighbouring channels, kVector each (and `per` is
//          kVector); else neighbouring places.
// Needs:   pointers aligned to kVector elements, C a multiple of kVector.
// Bound:   the look-ups of scattered sectors in L1, four to eight for each output; memory where the places are in order.

#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr bool kChannelsLast = false;
  static constexpr int kVector = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY grid_sample_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = Axis<Config::kMode, Config::kPadding, Config::kCorners, A>;
constexpr int kVector = Config::kVector, kMode = Config::kMode, kDeep = Config::kRank == 3 ? kMode : 1;
using V = Vec<T, kVector>;

__device__ __forceinline__ void take(A (&total)[kVector], const T* pixel, bool inside, A weight) {
  const V part = load<T, kVector>(pixel);
#pragma unroll
  for (int v = 0; v < kVector; ++v) total[v] += (inside ? widen(part.at[v]) : A(0)) * weight;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grid, T* __restrict__ y, long long batch, long long channels, long long per,
                   long long depth, long long height, long long width, long long o, long long p, long long q, long long x_n, long long x_c,
                   long long x_d, long long x_h, long long x_w, long long y_n, long long y_c, long long y_o, long long y_p, long long y_q) {
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
  const T* source = x + n * x_n;
  T* target = y + n * y_n + slice * y_o + row * y_p + column * y_q;
  const long long end = first + per < channels ? first + per : channels;
  for (long long c = first; c < end; c += kVector) {
    A total[kVector] = {};
#pragma unroll
    for (int k = 0; k < kDeep; ++k) {
#pragma unroll
      for (int i = 0; i < kMode; ++i) {
#pragma unroll
        for (int j = 0; j < kMode; ++j) {
          A weight = down.weight[i] * across.weight[j];
          bool inside = down.inside[i] && across.inside[j];
          if (Config::kRank == 3) weight *= deep.weight[k], inside = inside && deep.inside[k];
          take(total, source + c * x_c + deep.index[k] * x_d + down.index[i] * x_h + across.index[j] * x_w, inside, weight);
        }
      }
    }
    V result;
#pragma unroll
    for (int v = 0; v < kVector; ++v) result.at[v] = narrow<T>(total[v]);
    store(target + c * y_c, result);
  }
}
