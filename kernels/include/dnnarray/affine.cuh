// Coordinates of a grid of pixels, from -1 to 1.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

// An axis of `extent` pixels: coordinates at the centres of the first and the last pixel, or at their outer edges, are -1 and 1, where
// `inverse` is 1 / (extent - 1) (1 for one pixel) or 1 / extent.
struct GridAxis {
  long long extent;
  double inverse;

  __device__ __forceinline__ double at(long long i) const { return static_cast<double>(2 * i - (extent - 1)) * inverse; }
};

}  // namespace dnnarray
