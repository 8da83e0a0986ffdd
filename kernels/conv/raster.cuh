// Rasters: planes of an image as rows of `pitch` places, `height` rows, zeros where the plane ends, shared by what
//          stands on either side of them.
// Every tap along the last two axes is a shift there. Places behind the end of a row or a plane are computed for
// nothing.
#pragma once

#include "conv/implicit_tma.cuh"
#include "dnnarray/core/division.cuh"

namespace dnnarray {

// What a kernel on rasters is told of the convolution; `reach` places lie between the first tap and the last. Fewer
// than 2^31 places in all, so that none is found by a division: who asks for products waits until nearly all of them
// are done, so nothing hides what stands behind them.
template <typename T, typename R>
struct OnRaster {
  Target<T, R> target;
  TmaWeight weight;
  ConvAxes axes;
  long long images;
  Divisor pitch, height, planes;
  int reach;

  // Of a place of the rasters, in the result.
  __device__ __forceinline__ WindowPlace where(long long m) const {
    const unsigned place = static_cast<unsigned>(m), row = pitch.quotient(place), plane = height.quotient(row),
                   image = planes.quotient(plane);
    const unsigned w = place - row * pitch.n, h = row - plane * height.n, d = plane - image * planes.n;
    return {0, static_cast<int>(w), static_cast<int>(h), static_cast<int>(d), static_cast<int>(image)};
  }

  // Where its channels begin in memory, or -1.
  __device__ __forceinline__ long long at(long long m) const {
    const WindowPlace p = where(m);
    if (p.w >= axes.w.out || p.h >= axes.h.out || p.n >= images) return -1;
    return p.n * target.y_n + p.d * target.y_d + p.h * target.y_h + p.w * target.y_w;
  }

  // The first place of the input that it reads.
  __device__ __forceinline__ WindowPlace begins(long long m) const {
    WindowPlace p = where(m);
    p.w -= axes.w.before, p.h -= axes.h.before, p.d = p.d * axes.d.stride - axes.d.before;
    return p;
  }

  // Rows of 128 bytes of an input panel from its first tap to this one.
  __device__ __forceinline__ int shift(int r, int s) const {
    return r * axes.h.dilation * static_cast<int>(pitch.n) + s * axes.w.dilation;
  }
};

// As the arguments of a kernel say.
template <typename T, typename R, typename Arguments>
__device__ __forceinline__ OnRaster<T, R> on_raster(const Target<T, R>& target, const Arguments& a) {
  const ConvAxes& axes = a.axes;
  const TmaWeight weight = {a.channels, a.backwards, axes.d.window, axes.h.window, axes.w.window};
  const Divisor row(a.pitch, a.by_pitch), plane(a.height, a.by_height), volume(axes.d.out, a.by_plane);
  return {target, weight, axes, a.images, row, plane, volume, a.reach};
}

}  // namespace dnnarray
