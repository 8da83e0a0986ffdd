// The gradient of grid_sample by the coordinates, with look-ups in global memory.
//
// Layout:  as grid_sample; kLanes neighbouring threads share a place (grid_slopes.cuh). The result lies as the grid
//          does, by strides.
// Bound:   as grid_sample.

#include "spatial/grid_slopes.cuh"

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
struct Arguments {
  dnnarray::SlopeView view;
};
#define DNNARRAY_ENTRY spatial_grid_sample_slopes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using C = Config;

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ grid,
                   T* __restrict__ dgrid, const __grid_constant__ Arguments a) {
  const SlopeView view = a.view;
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  GridSlopes<T, C::kRank, C::kMode, C::kPadding, C::kCorners, C::kVector, C::kLanes>::run(index, grad, x, grid, dgrid,
                                                                                          view);
}
