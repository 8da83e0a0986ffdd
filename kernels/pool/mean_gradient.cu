// Gradient of mean pooling over two axes where no row lies in more than two rows of windows: dx = the sum over an
// element's windows of their share.
//
// Layout:  a thread owns kWide neighbours, columns in channels-first and channels in channels-last memory, and walks
//          down `rows` rows. What the windows of a row give to its columns changes only where one begins, so that it is
//          kept for the last two rows of windows.
// Needs:   pointers and W (or the channels) aligned to kWide elements; dilation 1; planes below 2^31.
// Bound:   memory: dx written once; grad is small, and neighbours meet in the caches.

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLast = false;
  static constexpr bool kAdaptive = true;
  static constexpr int kMost = 2;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  int rows;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
};
#define DNNARRAY_ENTRY pool_mean_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kMost = Config::kMost,
              kColumns = kLast ? 1 : kWide;  // columns of x that a thread has
using Values = A[kWide];

// The windows of a row that meet the thread's columns, kMost at the most: which of its columns lie in each, as bits,
// and what share they get.
struct Across {
  int q;  // the first of them
  unsigned bits[kMost];
  A share[kMost];

  __device__ __forceinline__ Across(const WindowAxis& axis, int w, bool padded) : q(axis.cover(w).first) {
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const Taps taps = axis.taps(q + k);
      bits[k] = q + k < axis.outputs ? columns_inside<kColumns>(taps, w) : 0;
      share[k] = inverse(A(axis.count(taps, padded)));
    }
  }

  // What a row of windows gives to the thread's elements; `grad` is the window that is the first of them, `column` the
  // distance between two.
  __device__ __forceinline__ void give(Values& y, const T* grad, int column, A down) const {
    constexpr int kLoaded = kLast ? kWide : 1;
    Vec<T, kLoaded> reg_grad[kMost] = {};
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (bits[k] != 0) reg_grad[k] = load<T, kLoaded>(grad + k * column);
    }
#pragma unroll
    for (int j = 0; j < kWide; ++j) y[j] = A(0);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      A part[kLoaded];
      widen_all(part, reg_grad[k]);
#pragma unroll
      for (int j = 0; j < kLoaded; ++j) part[j] *= share[k] * down;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (bits[k] >> (kLast ? 0 : j) & 1) y[j] += part[kLast ? j : 0];
      }
    }
  }
};

// `total` counts threads, and `among` says how they share the work (Share in strip.cuh); each walks down `rows` rows.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kMost > 2 ? 4 : 8)
    DNNARRAY_ENTRY(const T* __restrict__ grad, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Share<Config> own(thread, a.among);
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const int w = own.group * kColumns, first = own.strip * a.rows, line = axis_w.outputs * own.column;
  const int last = min(first + a.rows, axis_h.extent), outputs = axis_h.outputs;
  const Across across(axis_w, w, a.padded != 0);

  int p = axis_h.cover(first).first - 1;
  grad += (own.plane * outputs + p + 1) * line + across.q * own.column + own.channel;
  dx += ((own.plane * axis_h.extent + first) * axis_w.extent + w) * own.column + own.channel;
  const auto begin = [&](int i) {
    const Taps taps = axis_h.taps(i);
    return i < outputs ? taps.start + taps.first : 0x7fffffff;
  };
  Values current = {}, previous = {};
  int end = 0, previous_end = 0, next = begin(p + 1);  // rows where windows p and p - 1 end, and where p + 1 begins
  for (int h = first; h < last; ++h) {
    while (next <= h) {
      const Taps taps = axis_h.taps(++p);
#pragma unroll
      for (int j = 0; j < kWide; ++j) previous[j] = current[j];
      across.give(current, grad, own.column, inverse(A(axis_h.count(taps, a.padded != 0))));
      previous_end = end;
      end = taps.start + taps.last;
      next = begin(p + 1);
      grad += line;
    }
    Values sum;
#pragma unroll
    for (int j = 0; j < kWide; ++j) sum[j] = h < end ? current[j] : A(0);
    if (h < previous_end) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] += previous[j];
    }
    store(dx, narrow_all<T, kWide>(sum));
    dx += static_cast<long long>(axis_w.extent) * own.column;
  }
}
