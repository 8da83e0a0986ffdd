// The weight gradient by its definition: dw[k, c, r] = sum over n and p of dy[n, k, p] * x[n, c, p * stride + r * dilation - before].
//
// kRepair: only elements of dw that are NaN are computed again.
//
// Layout:  all memory by strides. A block owns one element of dw; its threads take pixels in turn.
// Needs:   nothing.
// Bound:   arithmetic without reuse: for tiny problems and odd memory. Sums of fixed order in float32 (double for double).

#include "dnnarray/conv.cuh"
#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Gradient = float;
  using Element = float;
  static constexpr bool kRepair = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_direct_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

// `k` and `c` are of one group.
extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(
    const Config::Gradient* __restrict__ dy, const Config::Source* __restrict__ x, T* __restrict__ dw, long long images, long long k,
    long long c, long long y_n, long long y_c, long long y_d, long long y_h, long long y_w, long long x_n, long long x_c, long long x_d,
    long long x_h, long long x_w, long long s_k, long long s_c, long long s_d, long long s_h, long long s_w, long long d0, long long d1,
    long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2) {
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  __shared__ A shared[Config::kThreads / kWarp];
  const int taps = axes.d.window * axes.h.window * axes.w.window;
  const Split by_r = split(blockIdx.x, taps), by_c = split(by_r.quotient, static_cast<int>(c));
  const Place tap = Place::of(by_r.rest, axes.h.window, axes.w.window);
  const long long out = by_c.quotient, in = out / k * c + by_c.rest;
  const long long pixels = static_cast<long long>(axes.d.out) * axes.h.out * axes.w.out;
  const Strides x_step = {x_n, x_c, x_d, x_h, x_w};
  T& result = dw[out * s_k + by_c.rest * s_c + tap.d * s_d + tap.h * s_h + tap.w * s_w];
  if (Config::kRepair && widen(result) == widen(result)) return;
  A sum = 0;
  for (long long i = threadIdx.x; i < images * pixels; i += Config::kThreads) {
    const long long n = i / pixels;
    const Place at = Place::of(i - n * pixels, axes.h.out, axes.w.out);
    const long long from = axes.input(at, tap, x_step);
    if (from < 0) continue;
    sum += A(widen(dy[n * y_n + out * y_c + at.d * y_d + at.h * y_h + at.w * y_w])) * A(widen(x[n * x_n + in * x_c + from]));
  }
  sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) result = narrow<T>(sum);
}
