// Gradient of adaptive pooling, whose windows may be of uneven length: every element of x gets its part of the gradient of each window over it.
//
// Layout:  x is (planes, D, H, W) in channels-first, (outer, D, H, W, inner) in channels-last. A thread owns kColumns neighbouring columns of
//          a row, which are one vector of memory; or in channels-last kWide channels of each. It goes over the windows that meet them, in a
//          fixed order; which columns lie in a window is a word of bits.
// Needs:   pointers and W (or the channels) aligned to kWide elements.
// Bound:   memory: dx written once, the rest is small.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 2;
  static constexpr bool kLast = false;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_uneven_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
using WindowAxis = Axis<true>;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kColumns = kLast ? 4 : kWide, kValues = kLast ? kWide : 1;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kRule = Config::kRule;  // as in gather.cu
template <bool kWideCode>
struct CodeOf {
  using type = int;
};
template <>
struct CodeOf<true> {
  using type = long long;
};
using Code = CodeOf<kRule == kPlace>::type;

// Where the thread's elements stand: the first of its columns, and the first of its channels.
struct Owned {
  long long plane;
  int d, h, w, channel, column;  // `column` is the step from one column to the next in memory

  __device__ __forceinline__ long long row(int extent_d, int extent_h, int d_, int h_) const {
    return (plane * extent_d + d_) * extent_h + h_;
  }
};

// The bits of the thread's columns that lie in a window along W.
__device__ __forceinline__ unsigned inside(const Taps& window, int w) {
  const int first = max(window.start - w, 0), last = min(window.start + window.last - w, kColumns);
  return (~0u << first) & ~(~0u << last);
}

// What one window gives to the columns inside; of a maximum, to the one that `number`, the tap or the place of column 0, says.
__device__ __forceinline__ void add(A (&sum)[kColumns][kValues], const Vec<T, kValues>& grad, const Vec<Saved, kValues>& saved, A share,
                                    Code number, unsigned columns) {
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    const A g = kRule == kMean ? widen(grad.at[v]) * share : widen(grad.at[v]);
    const Code distance = static_cast<Code>(saved.at[v]) - number;
    const unsigned to = kRule == kMean ? columns : distance >= 0 && distance < kColumns ? columns & 1u << distance : 0u;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c][v] += to >> c & 1 ? g : A(0);
  }
}

// `total` counts threads. Divided is by `inner`, the vectors of channels, by `groups`, the threads along W, and by H and D.
extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_grad, const Saved* __restrict__ gmem_saved, T* __restrict__ gmem_dx, long long total, long long inner,
    long long by_inner, long long groups, long long by_group, long long height, long long by_height, long long depth, long long by_depth,
    long long d0, long long d1, long long d2, long long d3, long long h0, long long h1, long long h2, long long h3, long long w0,
    long long w1, long long w2, long long w3) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const WindowAxis axis_d(d0, d1, d2, d3), axis_h(h0, h1, h2, h3), axis_w(w0, w1, w2, w3);
  const Split vector = kLast ? Divider(inner, by_inner)(thread) : Split{thread, 0}, along = Divider(groups, by_group)(vector.quotient);
  const Split down = Divider(height, by_height)(along.quotient), deep = Divider(depth, by_depth)(down.quotient);
  const Owned own{deep.quotient, deep.rest, down.rest, along.rest * kColumns, kLast ? vector.rest * kWide : 0, kLast ? high(inner) * kWide : 1};
  const int first = axis_w.cover(own.w).first, last = axis_w.cover(min(own.w + kColumns, axis_w.extent) - 1).last;
  const Cover over_d = axis_d.cover(own.d), over_h = axis_h.cover(own.h);

  const Code place = static_cast<Code>((static_cast<long long>(own.d) * axis_h.extent + own.h) * axis_w.extent + own.w);
  A sum[kColumns][kValues] = {};
  for (int od = over_d.first; od <= over_d.last; ++od) {
    const Taps in_d = axis_d.taps(od);
    for (int oh = over_h.first; oh <= over_h.last; ++oh) {
      const Taps in_h = axis_h.taps(oh);
      const long long from = own.row(axis_d.outputs, axis_h.outputs, od, oh) * axis_w.outputs;
      const int row = ((own.d - in_d.start) * axis_h.window + own.h - in_h.start) * axis_w.window;
#pragma unroll 1
      for (int ow = first; ow <= last; ++ow) {
        const Taps in_w = axis_w.taps(ow);
        const long long at = (from + ow) * own.column + own.channel;
        const Vec<T, kValues> reg_grad = load<T, kValues>(gmem_grad + at);
        Vec<Saved, kValues> reg_saved{};
        if constexpr (kRule != kMean) reg_saved = load_wide<Saved, kValues>(gmem_saved + at);
        const A share = kRule == kMean ? inverse(A(in_d.last) * A(in_h.last) * A(in_w.last)) : A(1);
        add(sum, reg_grad, reg_saved, share, kRule == kPlace ? place : row + own.w - in_w.start, inside(in_w, own.w));
      }
    }
  }

  T* const dx = gmem_dx + (own.row(axis_d.extent, axis_h.extent, own.d, own.h) * axis_w.extent + own.w) * own.column + own.channel;
#pragma unroll
  for (int c = 0; c < (kLast ? kColumns : 1); ++c) {
    if (own.w + c >= axis_w.extent) break;
    A values[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) values[j] = kLast ? sum[c][kLast ? j : 0] : sum[kLast ? c : j][0];
    store(dx + static_cast<long long>(c) * own.column, narrow_all<T, kWide>(values));
  }
}
