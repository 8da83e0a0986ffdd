// Gradient of pooling: dx = the sum over the windows that cover an element of what it gets of their gradient.
//
// Maximum: all of it if the window's maximum stands here; mean: its share; Lp norm: sign(x) (|x| / y)^(p - 1).
// Layout:  as in direct.cu; a thread owns kVector neighbouring channels of one element of x and sums over windows in a
//          fixed order, so that the bits are the same from run to run.
// Needs:   as direct.cu; at most kCover windows over an element along the last two axes (0: any number), and then no
//          third axis.
// Bound:   memory: x, grad and what was saved read once, dx written once.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 0;
  static constexpr bool kMagnitude = false;
  static constexpr bool kSmall = false;
  static constexpr bool kAdaptive = false;
  static constexpr int kCover = 2;
  static constexpr int kVector = 4;
  static constexpr int kColumns = 128;
  static constexpr int kRows = 1;
};
struct Arguments {
  long long rows;
  int planes;
  int inner;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::Axis<Config::kAdaptive> d;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
  double p;
};
#define DNNARRAY_ENTRY pool_gather_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;
using WindowAxis = Axis<Config::kAdaptive>;

// What kRule says of the saved array: the number of the tap with the maximum (kSmall: as small_windows.cu has it); its
// flat position in space; nothing (mean); the norm.
constexpr int kTap = 0, kPlace = 1, kMean = 2, kNorm = 3;
constexpr int kRule = Config::kRule;
constexpr bool kReadsX = kRule == kNorm || Config::kMagnitude;

// What one window says: its gradient and what the forward saved of it, and which tap of it stands here.
struct Entry {
  V grad;
  Vec<Saved, kVector> saved;
  bool there;
  int tap;
  A share;
};

// Along one axis: a window, which of its taps stands at the element (-1: none), and the share of a mean.
struct Hit {
  int window, tap;
  A share;
};
__device__ __forceinline__ Hit hit(const WindowAxis& axis, int place, int window, bool padded) {
  return {window, axis.tap_at(place, window),
          kRule == kMean ? inverse(A(axis.count(axis.taps(window), padded))) : A(1)};
}

struct Element {
  const T* grad;       // of the window 0 of the batch item and channel
  const Saved* saved;  // likewise
  Strides y;
  WindowAxis h, w;

  __device__ __forceinline__ Entry entry(const Hit& od, const Hit& oh, const Hit& ow) const {
    Entry e;
    e.there = od.tap >= 0 && oh.tap >= 0 && ow.tap >= 0;
    if (!e.there) return e;
    const long long at = od.window * y.d + oh.window * y.h + ow.window * y.w;
    e.grad = load<T, kVector>(grad + at);
    if constexpr (kRule != kMean) e.saved = load_wide<Saved, kVector>(saved + at);
    if constexpr (kRule == kTap)
      e.tap = Config::kSmall ? tap_code(oh.tap, ow.tap) : (od.tap * h.window + oh.tap) * w.window + ow.tap;
    if constexpr (kRule == kMean) e.share = od.share * oh.share * ow.share;
    return e;
  }
};

__device__ __forceinline__ void add(A (&sum)[kVector], const Entry& e, const V& x, long long place, A p) {
  if (!e.there) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const A g = widen(e.grad.at[j]);
    if constexpr (kRule == kTap) sum[j] += static_cast<int>(e.saved.at[j]) == e.tap ? g : A(0);
    if constexpr (kRule == kPlace) sum[j] += static_cast<long long>(e.saved.at[j]) == place ? g : A(0);
    if constexpr (kRule == kMean) sum[j] += g * e.share;
    if constexpr (kRule == kNorm) sum[j] += norm_gradient(g, magnitude(widen(x.at[j])), A(e.saved.at[j]), p);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kColumns* Config::kRows, sizeof(A) == 8 ? 2 : 4)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const Saved* __restrict__ saved,
                   T* __restrict__ dx, const __grid_constant__ Arguments a) {
  const WindowAxis axis_d = a.d, axis_h = a.h, axis_w = a.w;
  const int planes = a.planes, inner = a.inner;
  const Strides sx = a.x_strides, sy = a.y_strides;
  const bool padded = a.padded;
  const Split column =
      split(static_cast<long long>(blockIdx.x) * Config::kColumns + threadIdx.x % Config::kColumns, inner);
  if (column.quotient >= axis_w.extent) return;
  const int place_w = static_cast<int>(column.quotient);
  const Cover w = axis_w.cover(place_w);
  const A p = A(a.p);

  for (long long row = static_cast<long long>(blockIdx.y) * Config::kRows + threadIdx.x / Config::kColumns;
       row < a.rows; row += static_cast<long long>(gridDim.y) * Config::kRows) {
    const Split by_h = split(row, axis_h.extent), by_d = split(by_h.quotient, axis_d.extent),
                by_c = split(by_d.quotient, planes);
    const int place_h = by_h.rest, place_d = by_d.rest;
    const long long place = (static_cast<long long>(place_d) * axis_h.extent + place_h) * axis_w.extent + place_w;
    const long long at = by_c.quotient * sx.n + by_c.rest * sx.c + place_d * sx.d + place_h * sx.h + place_w * sx.w +
                         column.rest * kVector;
    const long long from = by_c.quotient * sy.n + by_c.rest * sy.c + column.rest * kVector;
    const Element element{grad + from, saved + from, sy, axis_h, axis_w};
    const Cover h = axis_h.cover(place_h);
    V reg_x;
    if constexpr (kReadsX) reg_x = load<T, kVector>(x + at);

    A sum[kVector] = {};
    if constexpr (Config::kCover > 0) {
      constexpr int kCover = Config::kCover > 0 ? Config::kCover : 1;
      Entry entries[kCover][kCover];
      Hit down[kCover], along[kCover];
#pragma unroll
      for (int a = 0; a < kCover; ++a) {
        down[a] = h.first + a <= h.last ? hit(axis_h, place_h, h.first + a, padded) : Hit{0, -1, A(0)};
        along[a] = w.first + a <= w.last ? hit(axis_w, place_w, w.first + a, padded) : Hit{0, -1, A(0)};
      }
#pragma unroll
      for (int a = 0; a < kCover; ++a)
#pragma unroll
        for (int b = 0; b < kCover; ++b) entries[a][b] = element.entry({0, 0, A(1)}, down[a], along[b]);
#pragma unroll
      for (int a = 0; a < kCover; ++a)
#pragma unroll
        for (int b = 0; b < kCover; ++b) add(sum, entries[a][b], reg_x, place, p);
    } else {
      const Cover d = axis_d.cover(place_d);
      for (int od = d.first; od <= d.last; ++od) {
        const Hit deep = hit(axis_d, place_d, od, padded);
        for (int oh = h.first; oh <= h.last; ++oh) {
          const Hit down = hit(axis_h, place_h, oh, padded);
          for (int ow = w.first; ow <= w.last; ++ow) {
            add(sum, element.entry(deep, down, hit(axis_w, place_w, ow, padded)), reg_x, place, p);
          }
        }
      }
    }

    V reg_dx;
#pragma unroll
    for (int j = 0; j < kVector; ++j) reg_dx.at[j] = narrow<T>(kReadsX ? sum[j] * sign(widen(reg_x.at[j])) : sum[j]);
    store(dx + at, reg_dx);
  }
}
