// The weight gradient from its partial sums (parts_weight_tma_sm90.cu), out[i] = sum over s of partial[s, i]; where dy or x hold NaN or infinities,
// elements that are NaN are computed again by the definition, since an infinity in parts is NaN.
//
// Layout:  partial is splits x n, dense, its elements (groups K, taps, C); out, dy and x by strides. A thread owns one element.
// Needs:   nothing.
// Bound:   memory: partial read once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/parts.cuh"
#include "dnnarray/weight_terms.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kScaled = true;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_parts_weight_sums_default
#endif

using namespace dnnarray;

// `channels` of x and `outs` of dy are of one group.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ partial, float* __restrict__ out, const float* __restrict__ dy, const float* __restrict__ x,
                   const Scale* __restrict__ dy_scale, const Scale* __restrict__ x_scale, long long n, long long splits, long long images,
                   long long outs, long long channels, long long t_k, long long t_c, long long t_d, long long t_h, long long t_w, long long y_n,
                   long long y_c, long long y_d, long long y_h, long long y_w, long long x_n, long long x_c, long long x_d, long long x_h,
                   long long x_w, long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1,
                   long long w2) {
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  partial = after_previous_kernel(partial);
  if (i >= n) return;
  float sum = 0;
#pragma unroll 8
  for (long long s = 0; s < splits; ++s) sum += partial[s * n + i];
  const Split by_c = split(i, static_cast<int>(channels)), by_w = split(by_c.quotient, axes.w.window), by_h = split(by_w.quotient, axes.h.window),
              by_d = split(by_h.quotient, axes.d.window);
  const int c = by_c.rest, tap_d = by_d.rest, tap_h = by_h.rest, tap_w = by_w.rest, k = static_cast<int>(by_d.quotient);
  if (Config::kScaled && sum != sum && (dy_scale->strange || x_scale->strange)) {
    const auto fits = [](long long value) { return static_cast<int>(value); };
    const WeightTerms<float> terms = {dy, x, axes, fits(images), fits(outs), fits(channels), {y_n, y_c, y_d, y_h, y_w}, {x_n, x_c, x_d, x_h, x_w}};
    float again[1];
    terms.add_up(i, again);
    sum = again[0];
  }
  out[k * t_k + c * t_c + tap_d * t_d + tap_h * t_h + tap_w * t_w] = sum;
}
