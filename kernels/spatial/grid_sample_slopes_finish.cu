// The gradient of the places of a grid over images from its sums over ranges of channels: the ranges in order, then
// pixels to coordinates.
//
// Layout:  sums (ranges, N, places, 2), grid and d (N, places, 2), C order. A thread owns a place.
// Bound:   memory.

#include "dnnarray/core/vec.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long ranges;
  long long places;
  long long height;
  long long width;
};
#define DNNARRAY_ENTRY spatial_grid_sample_slopes_finish_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = Axis<Config::kMode, Config::kPadding, Config::kCorners, A>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grid, const A* __restrict__ sums, T* __restrict__ dgrid,
                   const __grid_constant__ Arguments a) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= a.places) return;
  const Place across(widen(grid[own * 2]), a.width), down(widen(grid[own * 2 + 1]), a.height);
  A total[2] = {};
  for (long long r = 0; r < a.ranges; ++r) {
    const Vec<A, 2> part = load<A, 2>(sums + (r * a.places + own) * 2);
    total[0] += part.at[0];
    total[1] += part.at[1];
  }
  dgrid[own * 2] = narrow<T>(total[0] * across.rate);
  dgrid[own * 2 + 1] = narrow<T>(total[1] * down.rate);
}
