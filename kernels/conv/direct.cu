// The definition: y[n, k, p] = f(sum over c and r of x[n, c, p * stride + r * dilation - before] * w[k, c, r] + bias[k] + residual).
// kGradient: its input gradient, x and y having changed places: y[n, c, i] = f(sum over k and r of x[n, k, (i + before - r * dilation) /
// stride] * w[k, c, r] + bias[c]), where the division leaves no rest.
//
// kRepair: only elements of y that are NaN are computed again: those in which infinity met a zero that the definition does not have. kGated: and
// only where one of two arrays has NaN or infinities.
//
// Layout:  all memory by strides; those of the weight are along the channels of y, of x, and the window. A thread owns one element of y.
// Needs:   nothing.
// Bound:   arithmetic without reuse: for tiny problems and odd memory. Sums in float32 (double for double).

#include "dnnarray/activation.cuh"
#include "dnnarray/conv.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/parts.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Weight = float;
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGradient = false;
  static constexpr bool kRepair = false;
  static constexpr bool kGated = false;
  static constexpr bool kLast = true;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_direct_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

__device__ __forceinline__ int other(const ConvAxis& axis, int at, int tap) {
  return Config::kGradient ? axis.output(at, tap) : axis.input(at, tap);
}

// `total` elements of y with `own` channels a group, each the sum over `others` channels of x. flags: 2 bias, 4 residual.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 2) DNNARRAY_ENTRY(
    const Scale* __restrict__ gate_x, const Scale* __restrict__ gate_weight, const Config::Source* __restrict__ x,
    const Config::Weight* __restrict__ weight, const Config::Weight* __restrict__ bias, const Config::Weight* __restrict__ residual,
    T* __restrict__ y, long long total, long long groups, long long own, long long others,
    long long flags, long long x_n, long long x_c, long long x_d, long long x_h, long long x_w, long long r_n, long long r_c, long long r_d,
    long long r_h, long long r_w, long long y_n, long long y_c, long long y_d, long long y_h, long long y_w, long long w_group,
    long long w_own, long long w_other, long long w_d, long long w_h, long long w_w, long long d0, long long d1, long long d2, long long h0,
    long long h1, long long h2, long long w0, long long w1, long long w2, double p, double q) {
  if constexpr (Config::kGated) {
    let_next_kernel_begin();
    gate_x = after_previous_kernel(gate_x), gate_weight = after_previous_kernel(gate_weight);
    if (!gate_x->strange && !gate_weight->strange) return;
  }
  const ConvAxis d(d0, d1, d2), h(h0, h1, h2), w(w0, w1, w2);
  const int extent_d = Config::kGradient ? d.space : d.out, extent_h = Config::kGradient ? h.space : h.out,
            extent_w = Config::kGradient ? w.space : w.out, all = static_cast<int>(groups * own);
  const long long pixels = static_cast<long long>(extent_d) * extent_h * extent_w;
  for (long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x; i < total;
       i += static_cast<long long>(gridDim.x) * Config::kThreads) {
    if (Config::kRepair && widen(y[i]) == widen(y[i])) continue;  // y is dense in the order of i
    const Split by_c = split(Config::kLast ? i : i / pixels, all);
    const long long n = Config::kLast ? by_c.quotient / pixels : by_c.quotient;
    const Place at = Place::of(Config::kLast ? by_c.quotient - n * pixels : i % pixels, extent_h, extent_w);
    const Split by_group = split(by_c.rest, static_cast<int>(own));
    T& result = y[n * y_n + by_c.rest * y_c + at.d * y_d + at.h * y_h + at.w * y_w];
    const Config::Source* x_at = x + n * x_n + by_group.quotient * others * x_c;
    const Config::Weight* w_at = weight + by_group.quotient * w_group + by_group.rest * w_own;
    A sum = 0;
    for (int r = 0; r < d.window; ++r) {
      const int from_d = other(d, at.d, r);
      for (int s = 0; from_d >= 0 && s < h.window; ++s) {
        const int from_h = other(h, at.h, s);
        for (int t = 0; from_h >= 0 && t < w.window; ++t) {
          const int from_w = other(w, at.w, t);
          if (from_w < 0) continue;
          const Config::Source* x_row = x_at + from_d * x_d + from_h * x_h + from_w * x_w;
          const Config::Weight* w_row = w_at + r * w_d + s * w_h + t * w_w;
#pragma unroll 4
          for (long long c = 0; c < others; ++c) sum += A(widen(x_row[c * x_c])) * A(widen(w_row[c * w_other]));
        }
      }
    }
    if (flags & 2) sum += widen(bias[by_c.rest]);
    if (flags & 4) sum += widen(residual[n * r_n + by_c.rest * r_c + at.d * r_d + at.h * r_h + at.w * r_w]);
    result = narrow<T>(Config::Activation::forward(sum, A(p), A(q)));
  }
}
