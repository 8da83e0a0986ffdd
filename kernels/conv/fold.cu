// Images that sum up columns: y[n, c, i] = f(bias[c] + sum over p and r with p * stride + r * dilation - before == i of columns[n, p, c, r]).
//
// Layout:  y in any memory, given by its strides; the columns by theirs, as unfold.cu writes them. kLast: the channels run fastest and a
//          thread owns kVector of them at one pixel of y; else the pixels run fastest and a thread owns one element.
// Needs:   kVector > 1: channels of a group and all strides but the channels' multiples of it, pointers aligned.
// Bound:   memory: the columns read once. Each element gathers its terms in the order of the taps: the same bits at every run.

#include "dnnarray/activation.cuh"
#include "conv/geometry.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Column = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kBias = false;
  static constexpr bool kLast = true;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  int groups;
  int channels;
  dnnarray::Strides y_strides;
  long long step_image;
  long long step_pixel;
  long long step_group;
  long long step_channel;
  long long step_tap;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_fold_default
#endif

using namespace dnnarray;
using T = Config::Element;
using S = Config::Column;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;

__device__ __forceinline__ void add(A (&sum)[kVector], const S* columns) {
  const Vec<S, kVector> reg = load_wide<S, kVector>(columns);
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] += widen(reg.at[j]);
}

// The terms of one row of a window. Its first pixel is `row`, its first tap `tap`.
__device__ __forceinline__ void gather_row(A (&sum)[kVector], const S* columns, const Arguments& a, const ConvAxis& w, int at,
                                           long long row, int tap) {
  const long long step_pixel = a.step_pixel, step_tap = a.step_tap;
#pragma unroll 2
  for (int t = 0; t < w.window; ++t) {
    const int from = w.output(at, t);
    if (from >= 0) add(sum, columns + (row + from) * step_pixel + (tap + t) * step_tap);
  }
}

// The terms of an element.
__device__ __forceinline__ void gather(A (&sum)[kVector], const S* columns, const Arguments& a, const Place& at) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  for (int r = 0; r < d.window; ++r) {
    const int from_d = d.output(at.d, r);
    for (int s = 0; from_d >= 0 && s < h.window; ++s) {
      const int from_h = h.output(at.h, s);
      if (from_h < 0) continue;
      const long long row = (static_cast<long long>(from_d) * h.out + from_h) * w.out;
      const int tap = (r * h.window + s) * w.window;
      if (w.stride == 1) {
        gather_row(sum, columns, a, with_stride(w, 1), at.w, row, tap);
      } else if (w.stride == 2) {
        gather_row(sum, columns, a, with_stride(w, 2), at.w, row, tap);
      } else {
        gather_row(sum, columns, a, w, at.w, row, tap);
      }
    }
  }
}

// `total` elements of y; the steps of the columns are along image, pixel, group, channel and tap.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1) DNNARRAY_ENTRY(
    const S* __restrict__ columns, const T* __restrict__ bias, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const int depth = a.axes.d.space, height = a.axes.h.space, width = a.axes.w.space;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= a.total) return;
  const int all = a.groups * a.channels;
  long long n, flat;
  int c;
  if constexpr (Config::kLast) {
    const Split by_c = split(i, all);
    n = by_c.quotient / (static_cast<long long>(depth) * height * width);
    flat = by_c.quotient - n * depth * height * width;
    c = by_c.rest;
  } else {
    const long long pixels = static_cast<long long>(depth) * height * width, image = i / pixels;
    flat = i - image * pixels;
    const Split by_n = split(image, all);
    n = by_n.quotient;
    c = by_n.rest;
  }
  const Place at = Place::of(flat, height, width);
  const Split by_group = split(c, a.channels);
  columns += n * a.step_image + by_group.quotient * a.step_group + by_group.rest * a.step_channel;
  A sum[kVector] = {};
  gather(sum, columns, a, at);
  Vec<T, kVector> result;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if constexpr (Config::kBias) sum[j] += widen(bias[c + j]);
    result.at[j] = narrow<T>(Config::Activation::forward(sum[j], A(a.p), A(a.q)));
  }
  store(y + n * a.y_strides.n + c * a.y_strides.c + at.d * a.y_strides.d + at.h * a.y_strides.h + at.w * a.y_strides.w, result);
}
