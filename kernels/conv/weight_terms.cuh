// A weight gradient by its definition, for elements that came out as NaN from a faster way: there infinities may have
// met zeros that the definition does not have.
#pragma once

#include "conv/geometry.cuh"

namespace dnnarray {

// What the elements of dw (groups K, window, C) are made of: dy has `outs` channels in a group, x `channels`.
template <typename T>
struct WeightTerms {
  const T *dy, *x;
  ConvAxes axes;
  int images, outs, channels;
  Strides of_dy, of_x;

  // Elements i to i + kCount of one tap.
  template <int kCount>
  __device__ __forceinline__ void add_up(long long i, float (&sums)[kCount]) const {
    const Split by_c = split(i, channels), by_w = split(by_c.quotient, axes.w.window),
                by_h = split(by_w.quotient, axes.h.window), by_d = split(by_h.quotient, axes.d.window);
    const Place tap = {by_d.rest, by_h.rest, by_w.rest};
    const T* of_k = dy + by_d.quotient * of_dy.c;
    const T* of_group = x + (by_d.quotient / outs * channels + by_c.rest) * of_x.c;
    for (int j = 0; j < kCount; ++j) sums[j] = 0;
    bool all_strange = false;  // nothing that is added makes a number of them again
    for (int n = 0; n < images && !all_strange; ++n) {
      Place pixel = {0, 0, 0};
      do {
        const long long from = axes.input(pixel, tap, of_x);
        if (from < 0) continue;
        const float g = widen(of_k[n * of_dy.n + pixel.d * of_dy.d + pixel.h * of_dy.h + pixel.w * of_dy.w]);
        for (int j = 0; j < kCount; ++j) sums[j] += g * widen(of_group[n * of_x.n + from + j * of_x.c]);
      } while (!pixel.next(axes.d.out, axes.h.out, axes.w.out));
      all_strange = true;
      for (int j = 0; j < kCount; ++j) all_strange &= sums[j] != sums[j];
    }
  }
};

}  // namespace dnnarray
