// The weight gradient by its definition: dw[k, c, r] = sum over n and p of dy[n, k, p] * x[n, c, p * stride + r *
// dilation - before].
//
// kRepair: only elements of dw that are NaN are computed again.
//
// Layout:  all memory by strides. A block owns one element of dw; its threads take pixels in turn.
// Needs:   nothing.
// Bound:   arithmetic without reuse: for tiny problems and odd memory. Sums of fixed order in float32 (double for
//          double).

#include "conv/geometry.cuh"
#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Gradient = float;
  using Element = float;
  static constexpr bool kRepair = false;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long images;
  long long outs;
  long long channels;
  dnnarray::Strides y_strides;
  dnnarray::Strides x_strides;
  dnnarray::Strides w_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_direct_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

// `k` and `c` are of one group.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Gradient* __restrict__ dy, const Config::Source* __restrict__ x, T* __restrict__ dw,
                   const __grid_constant__ Arguments a) {
  const ConvAxes axes = a.axes;
  const Strides of_y = a.y_strides, of_x = a.x_strides, of_w = a.w_strides;
  const long long images = a.images;
  __shared__ A shared[Config::kThreads / kWarp];
  const int taps = axes.d.window * axes.h.window * axes.w.window;
  const Split by_r = split(blockIdx.x, taps), by_c = split(by_r.quotient, static_cast<int>(a.channels));
  const Place tap = Place::of(by_r.rest, axes.h.window, axes.w.window);
  const long long out = by_c.quotient, in = out / a.outs * a.channels + by_c.rest;
  const long long pixels = static_cast<long long>(axes.d.out) * axes.h.out * axes.w.out;
  T& result = dw[out * of_w.n + by_c.rest * of_w.c + tap.d * of_w.d + tap.h * of_w.h + tap.w * of_w.w];
  if (Config::kRepair && widen(result) == widen(result)) return;
  A sum = 0;
  for (long long i = threadIdx.x; i < images * pixels; i += Config::kThreads) {
    const long long n = i / pixels;
    const Place at = Place::of(i - n * pixels, axes.h.out, axes.w.out);
    const long long from = axes.input(at, tap, of_x);
    if (from < 0) continue;
    sum += A(widen(dy[n * of_y.n + out * of_y.c + at.d * of_y.d + at.h * of_y.h + at.w * of_y.w])) *
           A(widen(x[n * of_x.n + in * of_x.c + from]));
  }
  sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) result = narrow<T>(sum);
}
