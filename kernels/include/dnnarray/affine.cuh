// Coordinates of a grid of pixels, from -1 to 1.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

// Of pixel i among n: at the centres of the first and the last pixel (kCorners) or at their outer edges.
template <bool kCorners, typename A>
__device__ __forceinline__ A coordinate(long long i, long long n) {
  const double steps = static_cast<double>(2 * i - (n - 1));
  return A(steps / static_cast<double>(kCorners ? (n > 1 ? n - 1 : 1) : n));
}

}  // namespace dnnarray
