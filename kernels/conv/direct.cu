// The definition: y[n, k, p] = f(sum over c and r of x[n, c, p * stride + r * dilation - before] * w[k, c, r] + bias[k]
// + residual). kGradient: its input gradient, x and y having changed places: y[n, c, i] = f(sum over k and r of x[n, k,
// (i + before - r * dilation) / stride] * w[k, c, r] + bias[c]), where the division leaves no rest.
//
// kRepair: only elements of y that are NaN are computed again: those in which infinity met a zero that the definition
// does not have. kGated: and only where one of two arrays has NaN or infinities.
//
// Layout:  all memory by strides; those of the weight are along the channels of y, of x, and the window. A thread owns
//          one element of y.
// Needs:   nothing.
// Bound:   arithmetic without reuse: for tiny problems and odd memory. Sums in float32 (double for double).

#include "dnnarray/core/activation.cuh"
#include "conv/geometry.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/parts.cuh"

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
struct Arguments {
  long long total;
  long long groups;
  long long own;
  long long others;
  dnnarray::Strides x_strides;
  dnnarray::Strides residual_strides;
  dnnarray::Strides y_strides;
  long long w_group;
  long long w_own;
  long long w_other;
  long long window_strides[3];
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_direct_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

__device__ __forceinline__ int other(const ConvAxis& axis, int at, int tap) {
  return Config::kGradient ? axis.output(at, tap) : axis.input(at, tap);
}

// `total` elements of y with `own` channels a group, each the sum over `others` channels of x. An absent bias or
// residual is null.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 2)
    DNNARRAY_ENTRY(const Scale* __restrict__ gate_x, const Scale* __restrict__ gate_weight,
                   const Config::Source* __restrict__ x, const Config::Weight* __restrict__ weight,
                   const Config::Weight* __restrict__ bias, const Config::Weight* __restrict__ residual,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  if constexpr (Config::kGated) {
    let_next_kernel_begin();
    gate_x = after_previous_kernel(gate_x), gate_weight = after_previous_kernel(gate_weight);
    if (!gate_x->strange && !gate_weight->strange) return;
  }
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const Strides &of_x = a.x_strides, &of_residual = a.residual_strides, &of_y = a.y_strides;
  const long long others = a.others, x_other = a.x_strides.c, w_other = a.w_other;
  const int extent_d = Config::kGradient ? d.space : d.out, extent_h = Config::kGradient ? h.space : h.out,
            extent_w = Config::kGradient ? w.space : w.out, all = static_cast<int>(a.groups * a.own);
  const long long pixels = static_cast<long long>(extent_d) * extent_h * extent_w;
  for (long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x; i < a.total;
       i += static_cast<long long>(gridDim.x) * Config::kThreads) {
    if (Config::kRepair && widen(y[i]) == widen(y[i])) continue;  // y is dense in the order of i
    const Split by_c = split(Config::kLast ? i : i / pixels, all);
    const long long n = Config::kLast ? by_c.quotient / pixels : by_c.quotient;
    const Place at = Place::of(Config::kLast ? by_c.quotient - n * pixels : i % pixels, extent_h, extent_w);
    const Split by_group = split(by_c.rest, static_cast<int>(a.own));
    T& result = y[n * of_y.n + by_c.rest * of_y.c + at.d * of_y.d + at.h * of_y.h + at.w * of_y.w];
    const Config::Source* x_at = x + n * of_x.n + by_group.quotient * others * of_x.c;
    const Config::Weight* w_at = weight + by_group.quotient * a.w_group + by_group.rest * a.w_own;
    A sum = 0;
    for (int r = 0; r < d.window; ++r) {
      const int from_d = other(d, at.d, r);
      for (int s = 0; from_d >= 0 && s < h.window; ++s) {
        const int from_h = other(h, at.h, s);
        for (int t = 0; from_h >= 0 && t < w.window; ++t) {
          const int from_w = other(w, at.w, t);
          if (from_w < 0) continue;
          const Config::Source* x_row = x_at + from_d * of_x.d + from_h * of_x.h + from_w * of_x.w;
          const Config::Weight* w_row =
              w_at + r * a.window_strides[0] + s * a.window_strides[1] + t * a.window_strides[2];
#pragma unroll 4
          for (long long c = 0; c < others; ++c) sum += A(widen(x_row[c * x_other])) * A(widen(w_row[c * w_other]));
        }
      }
    }
    if (bias) sum += widen(bias[by_c.rest]);
    if (residual) {
      const Strides& r = of_residual;
      sum += widen(residual[n * r.n + by_c.rest * r.c + at.d * r.d + at.h * r.h + at.w * r.w]);
    }
    result = narrow<T>(Config::Activation::forward(sum, A(a.p), A(a.q)));
  }
}
