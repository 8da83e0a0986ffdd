// The geometry of a correlation in canonical axes: output p reads input p * stride + tap * dilation - before along each
// of three axes.
#pragma once

#include "dnnarray/core/strides.cuh"

namespace dnnarray {

// One spatial axis. The launch arguments are pairs: (output, input) extents, (window, stride), (dilation, before).
struct ConvAxis {
  int out, space, window, stride, dilation, before;

  __device__ __forceinline__ ConvAxis(long long extents, long long step, long long spread)
      : out(high(extents)),
        space(low(extents)),
        window(high(step)),
        stride(low(step)),
        dilation(high(spread)),
        before(low(spread)) {}

  // The input that tap t of output p reads, or -1.
  __device__ __forceinline__ int input(int p, int t) const {
    const int at = p * stride + t * dilation - before;
    return at >= 0 && at < space ? at : -1;
  }

  // The output that reads input i by tap t, or -1.
  __device__ __forceinline__ int output(int i, int t) const {
    const int distance = i + before - t * dilation;
    if (distance < 0) return -1;
    const int at = quotient(distance, stride);
    return at * stride == distance && at < out ? at : -1;
  }
};

// Steps in memory, in elements unless a kernel says otherwise, of an image whose channels are dense.
struct PixelStrides {
  long long n, d, h, w;
};

// Steps of a weight in elements: along groups, the outputs and inputs of one, and the window.
struct WeightStrides {
  long long group, k, c, d, h, w;
};

// A place on three axes, with the last one running fastest.
struct Place {
  int d, h, w;

  __device__ __forceinline__ static Place of(long long flat, int extent_h, int extent_w) {
    const Split by_w = split(flat, extent_w), by_h = split(by_w.quotient, extent_h);
    return {static_cast<int>(by_h.quotient), by_h.rest, by_w.rest};
  }

  // To the next place; true where all of them have been visited, which begins again.
  __device__ __forceinline__ bool next(int extent_d, int extent_h, int extent_w) {
    if (++w < extent_w) return false;
    w = 0;
    if (++h < extent_h) return false;
    h = 0;
    if (++d < extent_d) return false;
    d = 0;
    return true;
  }
};

struct ConvAxes {
  ConvAxis d, h, w;

  // Where in memory the input lies that `tap` of `pixel` reads, or -1.
  __device__ __forceinline__ long long input(const Place& pixel, const Place& tap, const Strides& x) const {
    const int at_d = d.input(pixel.d, tap.d), at_h = h.input(pixel.h, tap.h), at_w = w.input(pixel.w, tap.w);
    return at_d < 0 || at_h < 0 || at_w < 0 ? -1 : at_d * x.d + at_h * x.h + at_w * x.w;
  }
};

}  // namespace dnnarray
