// The taps of each place of a grid: the pixel of each, `pixels` where it lies outside of the image, and its weight.
//
// Layout:  grid (N, *places, kRank), C order; pixels and weights (N, places, taps), the last axis fastest along the
//          width. A thread owns a place.
// Bound:   memory: the grid read once, 8 bytes a tap written.

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
  long long places;
  long long extents[3];
};
#define DNNARRAY_ENTRY spatial_grid_sample_taps_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = GridPlace<T, Config::kRank, Config::kMode, Config::kPadding, Config::kCorners>;
constexpr int kMode = Config::kMode;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grid, unsigned* __restrict__ pixels, A* __restrict__ weights,
                   const __grid_constant__ Arguments a) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= a.places) return;
  const Place place(grid + own * Config::kRank, a.extents[0], a.extents[1], a.extents[2]);
  Place::each([&](int k, int i, int j) {
    const long long pixel = place.pixel(k, i, j, a.extents[1] * a.extents[2], a.extents[2], 1ll),
                    tap = own * Place::kTaps + (k * kMode + i) * kMode + j;
    pixels[tap] = static_cast<unsigned>(place.inside(k, i, j) ? pixel : a.extents[0] * a.extents[1] * a.extents[2]);
    weights[tap] = place.weight(k, i, j);
  });
}
