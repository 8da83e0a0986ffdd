// Up to four axes of any strides, walked by one index in C order.
#pragma once

namespace dnnarray {

struct Axes {
  long long extent[3];  // of the axes after the first, whose extent nobody needs
  long long stride[4];

  __device__ __forceinline__ long long offset(long long i) const {
    long long at = 0;
#pragma unroll
    for (int axis = 3; axis > 0; --axis) {
      if (extent[axis - 1] == 1) continue;
      const long long rest = i / extent[axis - 1];
      at += (i - rest * extent[axis - 1]) * stride[axis];
      i = rest;
    }
    return at + i * stride[0];
  }
};

}  // namespace dnnarray
