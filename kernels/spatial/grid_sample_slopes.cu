// The gradient of grid_sample by the coordinates: sum over channels and taps of g[n, c, p] * slope * x[n, c, tap].
//
// Layout:  as grid_sample; kLanes neighbouring threads share a place, each with every kLanes-th vector of kVector channels, and
//          add up in a fixed order.
//          The result lies as the grid does, by strides.
// Bound:   as grid_sample.

#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kVector = 1;
  static constexpr int kLanes = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY grid_sample_slopes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = Axis<Config::kMode, Config::kPadding, Config::kCorners, A>;
constexpr int kMode = Config::kMode, kDeep = Config::kRank == 3 ? kMode : 1, kLanes = Config::kLanes, kVector = Config::kVector;
using V = Vec<T, kVector>;

// The derivatives by z, y, x of the values of kVector channels. `pixel` points at their plane.
__device__ __forceinline__ void add_slopes(A (&slopes)[3], const V& g, const T* pixel, const Place& deep, const Place& down, const Place& across,
                                           const Strides& x) {
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
#pragma unroll
    for (int i = 0; i < kMode; ++i) {
#pragma unroll
      for (int j = 0; j < kMode; ++j) {
        bool inside = down.inside[i] && across.inside[j];
        if (Config::kRank == 3) inside = inside && deep.inside[k];
        const V values = load<T, kVector>(pixel + deep.index[k] * x.space[0] + down.index[i] * x.space[1] + across.index[j] * x.space[2]);
        A along = A(0);
#pragma unroll
        for (int v = 0; v < kVector; ++v) along += (inside ? widen(values.at[v]) : A(0)) * widen(g.at[v]);
        const A around = Config::kRank == 3 ? deep.weight[k] : A(1);
        slopes[2] += along * across.slope[j] * (around * down.weight[i]);
        slopes[1] += along * down.slope[i] * (around * across.weight[j]);
        if (Config::kRank == 3) slopes[0] += along * deep.slope[k] * (down.weight[i] * across.weight[j]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ grid, T* __restrict__ d, long long batch,
                   long long channels, long long depth, long long height, long long width, long long o, long long p, long long q,
                   long long x_n, long long x_c, long long x_d, long long x_h, long long x_w, long long y_n, long long y_c, long long y_o,
                   long long y_p, long long y_q, long long d_n, long long d_c, long long d_o, long long d_p, long long d_q) {
  const long long own = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) / kLanes;
  const bool there = own < batch * o * p * q;
  long long n = there ? own : 0;
  const T* at = grid + n * Config::kRank;
  const long long column = split(n, q), row = split(n, p), slice = split(n, o);
  const Place across(widen(at[0]), width), down(widen(at[1]), height);
  const Place deep(Config::kRank == 3 ? widen(at[Config::kRank - 1]) : A(0), Config::kRank == 3 ? depth : 1);
  const Strides strides{x_n, x_c, {x_d, x_h, x_w}};
  const T* incoming = g + n * y_n + slice * y_o + row * y_p + column * y_q;
  A slopes[3] = {};
  for (long long c = threadIdx.x % kLanes * kVector; c < channels; c += kLanes * kVector) {
    add_slopes(slopes, load<T, kVector>(incoming + c * y_c), x + n * x_n + c * x_c, deep, down, across, strides);
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) slopes[i] = warp_sum<kLanes>(slopes[i]);
  if (!there || threadIdx.x % kLanes != 0) return;
  T* result = d + n * d_n + slice * d_o + row * d_p + column * d_q;
  result[0] = narrow<T>(slopes[2] * across.rate);
  result[d_c] = narrow<T>(slopes[1] * down.rate);
  if (Config::kRank == 3) result[2 * d_c] = narrow<T>(slopes[0] * deep.rate);
}
