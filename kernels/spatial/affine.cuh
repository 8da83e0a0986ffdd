// Coordinates of a grid of pixels, from -1 to 1.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

// An axis of `extent` pixels: coordinates at the centres of the first and the last pixel, or at their outer edges, are
// -1 and 1, where `length` is extent - 1 (1 for one pixel) or extent, and `inverse` is 1 / length. Twice the extent is
// a number of type I.
template <typename A, typename I>
struct GridAxis {
  I last;
  A length, inverse;

  __device__ __forceinline__ GridAxis(long long extent, long long length, double inverse)
      : last(static_cast<I>(extent) - 1), length(A(static_cast<I>(length))), inverse(A(inverse)) {}
  // (2 i - last) / length, corrected once for the rounded inverse: the ends of an axis are -1 and 1 exactly, which no
  // sampling looks past.
  __device__ __forceinline__ A at(I i) const {
    const A from_middle = A(2 * i - last), near = from_middle * inverse;
    return near + (from_middle - near * length) * inverse;
  }
};

}  // namespace dnnarray
