// Gradient of pooling whose windows tile the planes without a gap, of any size, up to whole planes: every element of x
// gets its part of the gradient of the one window it lies in, as in gather.cu.
//
// Layout:  x is (planes, H, W) in channels-first, (outer, H, W, inner) in channels-last. A thread owns a vector of
//          kWide elements: of x as it lies in memory, or of kWide neighbouring channels in kSteps columns. kReach says
//          what a vector along memory meets: one window; two planes at most, each of which is one window; or any
//          windows and rows.
// Needs:   pointers and the channels aligned to kWide elements; windows along W too where kReach is 0, planes of at
//          least kWide elements where it is 1; planes below 2^30.
// Bound:   memory: dx written once.

#include "dnnarray/core/overlap.cuh"
#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 2;
  static constexpr bool kMagnitude = false;
  static constexpr bool kLast = false;
  static constexpr int kReach = 0;
  static constexpr int kWide = 4;
  static constexpr int kSteps = 1;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider heights;
  dnnarray::Divider widths;
  dnnarray::Divider inner;
  dnnarray::Divider h_window;
  int h_extent;
  int h_outputs;
  int h_counted;
  dnnarray::Divider w_window;
  int w_extent;
  int w_outputs;
  int w_counted;
  double p;
};
#define DNNARRAY_ENTRY pool_tiling_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
constexpr int kWide = Config::kWide, kSteps = Config::kSteps, kOneWindow = 0, kTwoPlanes = 1, kReach = Config::kReach;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kNorm = 3, kRule = Config::kRule;  // as in gather.cu
constexpr bool kReadsX = kRule == kNorm || Config::kMagnitude;
using V = Vec<T, kWide>;

// The windows along one axis: `window` elements each, the last one cut at `counted`, where what an average counts ends.
struct Tiling {
  Divider by_window;
  int extent, outputs, counted;

  __device__ __forceinline__ int window() const { return by_window.divisor; }
  __device__ __forceinline__ A count(int i) const { return A(min(window(), counted - i * window())); }
};

// Where an element stands: its row and column, and in which window at which tap.
struct Place {
  int h, w, p, q, r, s;
};

struct Planes {
  const T *grad, *x;
  const Saved* saved;
  T* dx;
  long long total;
  Divider by_height, by_width, by_inner;
  Tiling height, width;
  A p;

  __device__ __forceinline__ Place place(int h, int w) const {
    const Split down = height.by_window(h), along = width.by_window(w);
    return {h, w, static_cast<int>(down.quotient), static_cast<int>(along.quotient), down.rest, along.rest};
  }
  __device__ __forceinline__ bool covered(const Place& at) const {
    return at.p < height.outputs && at.q < width.outputs;
  }
  __device__ __forceinline__ A share(const Place& at) const {
    return kRule == kMean ? A(1) / (height.count(at.p) * width.count(at.q)) : A(1);
  }

  // The gradient of the element x that stands there, whose window has the gradient g (its share, for a mean).
  __device__ __forceinline__ A gradient(A g, Saved saved, A x, const Place& at) const {
    if constexpr (kRule == kNorm) g = norm_gradient(g, magnitude(x), A(saved), p);
    if constexpr (kRule == kTap || kRule == kPlace) {
      const int here = kRule == kTap ? at.r * width.window() + at.s : at.h * width.extent + at.w;
      if (static_cast<long long>(saved) != here) g = A(0);
    }
    return kReadsX ? g * sign(x) : g;
  }

  // What a window gives: its gradient, shared, and what was saved of it.
  struct Given {
    A grad;
    Saved saved;
  };
  __device__ __forceinline__ Given given(long long plane, const Place& at) const {
    Given window{A(0), Saved{}};
    if (!covered(at)) return window;
    const long long from = (plane * height.outputs + at.p) * width.outputs + at.q;
    window.grad = widen(grad[from]) * share(at);
    if constexpr (kRule != kMean) window.saved = saved[from];
    return window;
  }

  // kWide elements from number i on, in memory order.
  __device__ __forceinline__ void first(long long i) const {
    const Split column = by_width(i), row = by_height(column.quotient);
    const int count = kReach != kOneWindow && total - i < kWide ? static_cast<int>(total - i) : kWide;
    Place at = place(row.rest, column.rest);
    V reg_x = part_of(x + i, count), reg_dx{};
    const Given own = given(row.quotient, at);
    if constexpr (kReach == kOneWindow) {
#pragma unroll
      for (int j = 0; j < kWide; ++j, ++at.w, ++at.s)
        reg_dx.at[j] = narrow<T>(gradient(own.grad, own.saved, widen(reg_x.at[j]), at));
    } else if constexpr (kReach == kTwoPlanes) {
      const int left = width.extent - at.w;  // elements of the first plane
      const Place begin{0, 0, 0, 0, 0, 0};
      const Given next = left < count ? given(row.quotient + 1, begin) : own;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const bool mine = j < left;
        const int w = mine ? at.w + j : j - left;
        const Place here{0, w, 0, 0, 0, w};
        reg_dx.at[j] =
            narrow<T>(gradient(mine ? own.grad : next.grad, mine ? own.saved : next.saved, widen(reg_x.at[j]), here));
      }
    } else {
      walk(row.quotient, at, own, reg_x, count, reg_dx);
    }
    if (count == kWide) {
      store(dx + i, reg_dx);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j < count) dx[i + j] = reg_dx.at[j];
      }
    }
  }
  __device__ __forceinline__ V part_of(const T* p, int count) const {
    V v{};
    if constexpr (kReadsX) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j < count) v.at[j] = p[j];
      }
    }
    return v;
  }
  // From window to window, row to row and plane to plane.
  __device__ __forceinline__ void walk(long long plane, Place at, Given window, const V& reg_x, int count,
                                       V& reg_dx) const {
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      if (j >= count) break;
      if (j > 0 && at.s == 0) window = given(plane, at);
      reg_dx.at[j] = narrow<T>(gradient(window.grad, window.saved, widen(reg_x.at[j]), at));
      ++at.w;
      if (++at.s == width.window()) at.s = 0, ++at.q;
      if (at.w == width.extent) {
        const bool next = at.h + 1 == height.extent;
        plane += next;
        at = place(next ? 0 : at.h + 1, 0);
      }
    }
  }

  // kSteps columns of kWide channels.
  __device__ __forceinline__ void last(long long i) const {
    const Split vector = by_inner(i), strip = by_width(vector.quotient), row = by_height(strip.quotient);
    const int inner = by_inner.divisor;
    Place at = place(row.rest, strip.rest * kSteps);
    V reg_grad{};
    Vec<Saved, kWide> reg_saved{};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (at.w >= width.extent) return;
      if ((step == 0 || at.s == 0) && covered(at)) {
        const long long from =
            (((row.quotient * height.outputs + at.p) * width.outputs + at.q) * inner + vector.rest) * kWide;
        reg_grad = load<T, kWide>(grad + from);
        if constexpr (kRule != kMean) reg_saved = load_wide<Saved, kWide>(saved + from);
      }
      const A part = covered(at) ? share(at) : A(0);
      const long long to =
          (((row.quotient * height.extent + at.h) * width.extent + at.w) * inner + vector.rest) * kWide;
      V reg_x{}, reg_dx;
      if constexpr (kReadsX) reg_x = load<T, kWide>(x + to);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const bool there = part != A(0);  // else what is held is of the window before
        reg_dx.at[j] = narrow<T>(gradient(there ? widen(reg_grad.at[j]) * part : A(0),
                                          there ? reg_saved.at[j] : Saved{}, widen(reg_x.at[j]), at));
      }
      store(dx + to, reg_dx);
      ++at.w;
      if (++at.s == width.window()) at.s = 0, ++at.q;
    }
  }
};

// `total` counts elements (channels-first), or vectors of channels in kSteps columns; `heights` are the rows of a
// plane, `widths` the columns or their number of steps, `inner` the vectors of channels; h_* and w_* describe the
// windows along H and W as Tiling does.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const Saved* __restrict__ saved,
                   T* __restrict__ dx, const __grid_constant__ Arguments a) {
  begin_ahead();
  Planes planes{grad,
                x,
                saved,
                dx,
                a.total,
                a.heights,
                a.widths,
                a.inner,
                {a.h_window, a.h_extent, a.h_outputs, a.h_counted},
                {a.w_window, a.w_extent, a.w_outputs, a.w_counted},
                A(a.p)};
  const long long i =
      (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * (Config::kLast ? 1 : kWide);
  if (i >= a.total) return;
  if constexpr (kSteps == 1) take_after_previous_kernel(planes.grad, planes.x, planes.saved);
  if constexpr (Config::kLast) {
    planes.last(i);
  } else {
    planes.first(i);
  }
}
