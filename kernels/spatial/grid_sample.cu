// y[n, c, p] = sum over taps of weight * x[n, c, tap], at the place that grid[n, p] names.
//
// Layout:  x and y by strides, three spatial axes (an image has a first one of extent 1); grid (N, *places, rank). A
//          thread owns one place and `per` channels of it. kChannelsLast: neighbouring threads have neighbouring
//          channels, kVector each (and `per` is kVector); else neighbouring places. kOnce: `per` is kVector, all is
//          read before anything is written.
// Needs:   pointers aligned to kVector elements, C a multiple of kVector.
// Bound:   the look-ups of scattered sectors in L1, four to eight for each output; memory where the places are in
//          order.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr bool kChannelsLast = false;
  static constexpr bool kOnce = false;
  static constexpr int kVector = 1;
  static constexpr int kThreads = 128;
};
struct Arguments {
  dnnarray::Shares shares;
  long long extents[3];
  long long x_strides[5];
  long long y_strides[5];
};
#define DNNARRAY_ENTRY spatial_grid_sample_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = GridPlace<T, Config::kRank, Config::kMode, Config::kPadding, Config::kCorners>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;

__device__ __forceinline__ void take(A (&total)[kVector], const T* pixel, bool inside, A weight) {
  const V part = load<T, kVector>(pixel);
#pragma unroll
  for (int v = 0; v < kVector; ++v) total[v] += (inside ? widen(part.at[v]) : A(0)) * weight;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grid, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  begin_ahead();
  using Share = PlaceAndChannels<Config::kChannelsLast>;
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= a.shares.threads) return;
  const Share mine(index, a.shares);
  grid += mine.own * Config::kRank;
  if constexpr (Config::kOnce) take_after_previous_kernel(grid, x);
  const Place place(grid, a.extents[0], a.extents[1], a.extents[2]);
  const T* source = x + mine.n * a.x_strides[0];
  T* target = y + mine.n * a.y_strides[0] + mine.slice * a.y_strides[2] + mine.row * a.y_strides[3] +
              mine.column * a.y_strides[4];
  for (long long c = mine.first; c < mine.end; c += kVector) {
    A total[kVector] = {};
    Place::each([&](int k, int i, int j) {
      take(total, source + c * a.x_strides[1] + place.pixel(k, i, j, a.x_strides[2], a.x_strides[3], a.x_strides[4]),
           place.inside(k, i, j), place.weight(k, i, j));
    });
    V result;
#pragma unroll
    for (int v = 0; v < kVector; ++v) result.at[v] = narrow<T>(total[v]);
    store(target + c * a.y_strides[1], result);
  }
}
