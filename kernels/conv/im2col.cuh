// The rows of an implicit matrix of windows: row m is output pixel m, its columns are (tap, channel), in chunks of 8
// channels that lie together in memory. What a row needs to find a chunk is two numbers: where its window begins and
// which taps are inside of the image.
#pragma once

#include "conv/geometry.cuh"

namespace dnnarray {

// All steps in chunks. `channels` chunks of a group, `total` chunks of a row.
struct Windows {
  ConvAxes axes;
  long long rows;
  int channels, total;
  int x_n, x_d, x_h, x_w;
};

// As the arguments of a kernel say.
template <typename Arguments>
__device__ __forceinline__ Windows windows_of(const Arguments& a) {
  const PixelStrides& x = a.x_strides;
  return {a.axes,
          a.rows,
          a.channels,
          a.total,
          static_cast<int>(x.n),
          static_cast<int>(x.d),
          static_cast<int>(x.h),
          static_cast<int>(x.w)};
}

// Bits of the mask: the taps of the first axis, then those of the second and of the third; the last bit is never set.
struct WindowRow {
  int base;
  unsigned mask;
};

constexpr unsigned kOutside = 0x80000000u;

// The bits from `bit` on of the taps that stand inside of an axis where the window begins at `first`.
__device__ __forceinline__ unsigned inside(const ConvAxis& axis, int first, int bit) {
  if (axis.dilation == 1) {
    const int low = min(max(-first, 0), axis.window), high = min(max(axis.space - first, low), axis.window);
    return ((1u << high) - (1u << low)) << bit;
  }
  unsigned mask = 0;
  for (int t = 0; t < axis.window; ++t) {
    const int at = first + t * axis.dilation;
    if (at >= 0 && at < axis.space) mask |= 1u << (bit + t);
  }
  return mask;
}

// An output pixel by its places, and steps from one to another of a fixed distance.
struct Pixel {
  long long n;
  int d, h, w;

  __device__ __forceinline__ static Pixel of(const ConvAxes& axes, long long m) {
    const Split by_w = split(m, axes.w.out), by_h = split(by_w.quotient, axes.h.out),
                by_d = split(by_h.quotient, axes.d.out);
    return {by_d.quotient, by_d.rest, by_h.rest, by_w.rest};
  }

  // By the distance that `step` is from pixel 0.
  __device__ __forceinline__ void advance(const ConvAxes& axes, const Pixel& step) {
    w += step.w;
    h += step.h;
    d += step.d;
    n += step.n;
    if (w >= axes.w.out) w -= axes.w.out, ++h;
    if (h >= axes.h.out) h -= axes.h.out, ++d;
    if (d >= axes.d.out) d -= axes.d.out, ++n;
  }
};

__device__ __forceinline__ WindowRow window_row(const Windows& a, const Pixel& pixel) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const int at_d = pixel.d * d.stride - d.before, at_h = pixel.h * h.stride - h.before,
            at_w = pixel.w * w.stride - w.before;
  const unsigned mask = inside(d, at_d, 0) | inside(h, at_h, d.window) | inside(w, at_w, d.window + h.window);
  return {static_cast<int>(pixel.n) * a.x_n + at_d * a.x_d + at_h * a.x_h + at_w * a.x_w, mask};
}

__device__ __forceinline__ WindowRow window_row(const Windows& a, long long m) {
  if (m >= a.rows) return {0, 0};
  return window_row(a, Pixel::of(a.axes, m));
}

// A chunk of the columns: its tap and its place among the channels, and what they mean for the rows.
struct WindowChunk {
  int c, d, h, w;

  __device__ __forceinline__ static WindowChunk of(const Windows& a, int chunk) {
    const int tap = chunk / a.channels, by_w = tap / a.axes.w.window;
    return {chunk - tap * a.channels, by_w / a.axes.h.window, by_w % a.axes.h.window, tap - by_w * a.axes.w.window};
  }

  __device__ __forceinline__ void advance(const Windows& a, int chunks) {
    for (c += chunks; c >= a.channels; c -= a.channels) {
      if (++w < a.axes.w.window) continue;
      w = 0;
      if (++h < a.axes.h.window) continue;
      h = 0;
      ++d;
    }
  }

  // To the same channels of the next tap; behind the last one, to the first tap of the channels `chunks` further on.
  __device__ __forceinline__ void advance_tap(const Windows& a, int chunks) {
    if (++w < a.axes.w.window) return;
    w = 0;
    if (++h < a.axes.h.window) return;
    h = 0;
    if (++d < a.axes.d.window) return;
    d = 0;
    c += chunks;
  }

  // From where a row's window begins.
  __device__ __forceinline__ int step(const Windows& a) const {
    return d * a.axes.d.dilation * a.x_d + h * a.axes.h.dilation * a.x_h + w * a.axes.w.dilation * a.x_w + c;
  }

  // The bits that a row's mask must have; a chunk behind the end is in no row.
  __device__ __forceinline__ unsigned bits(const Windows& a) const {
    if (d >= a.axes.d.window || c >= a.channels) return kOutside;
    return 1u << d | 1u << (a.axes.d.window + h) | 1u << (a.axes.d.window + a.axes.h.window + w);
  }
};

}  // namespace dnnarray
