// Images that sum up columns: y[n, c, i] = f(bias[c] + sum over p and r with p * stride + r * dilation - before == i of
// columns[n, p, c, r]).
//
// Layout:  y in any memory, given by its strides; the columns by theirs, as unfold.cu writes them. kLast: the channels
//          run fastest and a thread owns kVector of them at one pixel of y; else the pixels run fastest and a thread
//          owns one element.
// Needs:   kVector > 1: channels of a group and all strides but the channels' multiples of it, pointers aligned.
// Bound:   memory: the columns read once. Each element gathers its terms in the order of the taps: the same bits at
//          every run.

#include "dnnarray/core/activation.cuh"
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

// `total` elements of y; the strides of the columns are along image, pixel, group, channel and tap.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const S* __restrict__ columns, const T* __restrict__ bias, T* __restrict__ y, long long total,
                   long long groups, long long channels, long long y_n, long long y_c, long long y_d, long long y_h,
                   long long y_w, long long s_image, long long s_pixel, long long s_group, long long s_channel,
                   long long s_tap, long long d0, long long d1, long long d2, long long h0, long long h1, long long h2,
                   long long w0, long long w1, long long w2, double p, double q) {
  const ConvAxis d(d0, d1, d2), h(h0, h1, h2), w(w0, w1, w2);
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= total) return;
  const int all = static_cast<int>(groups * channels);
  long long n, flat;
  int c;
  if constexpr (Config::kLast) {
    const Split by_c = split(i, all);
    n = by_c.quotient / (static_cast<long long>(d.space) * h.space * w.space);
    flat = by_c.quotient - n * d.space * h.space * w.space;
    c = by_c.rest;
  } else {
    const long long pixels = static_cast<long long>(d.space) * h.space * w.space, image = i / pixels;
    flat = i - image * pixels;
    const Split by_n = split(image, all);
    n = by_n.quotient;
    c = by_n.rest;
  }
  const Place at = Place::of(flat, h.space, w.space);
  const Split by_group = split(c, static_cast<int>(channels));
  columns += n * s_image + by_group.quotient * s_group + by_group.rest * s_channel;
  A sum[kVector] = {};
  for (int r = 0; r < d.window; ++r) {
    const int from_d = d.output(at.d, r);
    for (int s = 0; from_d >= 0 && s < h.window; ++s) {
      const int from_h = h.output(at.h, s);
      for (int t = 0; from_h >= 0 && t < w.window; ++t) {
        const int from_w = w.output(at.w, t);
        const long long pixel = (static_cast<long long>(from_d) * h.out + from_h) * w.out + from_w;
        if (from_w >= 0) add(sum, columns + pixel * s_pixel + ((r * h.window + s) * w.window + t) * s_tap);
      }
    }
  }
  Vec<T, kVector> result;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if constexpr (Config::kBias) sum[j] += widen(bias[c + j]);
    result.at[j] = narrow<T>(Config::Activation::forward(sum[j], A(p), A(q)));
  }
  store(y + n * y_n + c * y_c + at.d * y_d + at.h * y_h + at.w * y_w, result);
}
