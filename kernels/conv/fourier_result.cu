// The results that tiles of transforms hold: y[o, i, p] = scale * in[o, i, t, q - t * step] with q = p * spread and t =
// q / step.
//
// Layout:  in dense; y by its strides, which may be negative. A thread owns one element of y, neighbours along the
//          last axis beside each other.
// Needs:   nothing.
// Bound:   memory: y written once, what it takes of `in` read once.

#include "conv/fourier.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  int inner;
  long long y_strides[5];
  dnnarray::ResultAxes axes;
  float scale;
};
#define DNNARRAY_ENTRY conv_fourier_result_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ source, float* __restrict__ y, const __grid_constant__ Arguments a) {
  const ResultAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.total) return;
  const Split by_p = split(i, d.extent * h.extent * w.extent), by_i = split(by_p.quotient, a.inner);
  const Place p = Place::of(by_p.rest, h.extent, w.extent);
  const Split at_d = d.place(p.d), at_h = h.place(p.h), at_w = w.place(p.w);
  const long long tile = (at_d.quotient * h.tiles + at_h.quotient) * w.tiles + at_w.quotient;
  const int volume = d.size * h.size * w.size, u = (at_d.rest * h.size + at_h.rest) * w.size + at_w.rest;
  const float value = source[(by_p.quotient * (d.tiles * h.tiles * w.tiles) + tile) * volume + u];
  y[by_i.quotient * a.y_strides[0] + by_i.rest * a.y_strides[1] + p.d * a.y_strides[2] + p.h * a.y_strides[3] +
    p.w * a.y_strides[4]] = value * a.scale;
}
