// The weight gradient from its partial sums (parts_weight_tma_sm90.cu), out[i] = sum over s of partial[s, i]; where dy
// or x hold NaN or infinities, elements that are NaN are computed again by the definition, since an infinity in parts
// is NaN.
//
// Layout:  partial is splits x n, dense, its elements (groups K, taps, C); out, dy and x by strides. A thread owns one
//          element.
// Needs:   nothing.
// Bound:   memory: partial read once.

#include "dnnarray/core/overlap.cuh"
#include "conv/parts.cuh"
#include "conv/weight_terms.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kScaled = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long splits;
  int images;
  int outs;
  int channels;
  dnnarray::Strides w_strides;
  dnnarray::Strides y_strides;
  dnnarray::Strides x_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_parts_weight_sums_default
#endif

using namespace dnnarray;

// `channels` of x and `outs` of dy are of one group.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ partial, float* __restrict__ out, const float* __restrict__ dy,
                   const float* __restrict__ x, const Scale* __restrict__ dy_scale, const Scale* __restrict__ x_scale,
                   const __grid_constant__ Arguments a) {
  const ConvAxes& axes = a.axes;
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  partial = after_previous_kernel(partial);
  if (i >= a.size) return;
  float sum = 0;
#pragma unroll 8
  for (long long s = 0; s < a.splits; ++s) sum += partial[s * a.size + i];
  const Split by_c = split(i, a.channels), by_w = split(by_c.quotient, axes.w.window),
              by_h = split(by_w.quotient, axes.h.window), by_d = split(by_h.quotient, axes.d.window);
  const int c = by_c.rest, tap_d = by_d.rest, tap_h = by_h.rest, tap_w = by_w.rest, k = static_cast<int>(by_d.quotient);
  if (Config::kScaled && sum != sum && (dy_scale->strange || x_scale->strange)) {
    const WeightTerms<float> terms = {dy, x, axes, a.images, a.outs, a.channels, a.y_strides, a.x_strides};
    float again[1];
    terms.add_up(i, again);
    sum = again[0];
  }
  out[k * a.w_strides.n + c * a.w_strides.c + tap_d * a.w_strides.d + tap_h * a.w_strides.h + tap_w * a.w_strides.w] =
      sum;
}
