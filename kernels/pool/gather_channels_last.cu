// Gradient of pooling in channels-last memory, as gather.cu, with the windows fetched once for several columns.
//
// Layout:  x is (outer, D, H, W, inner). A thread owns kWide channels of kColumns neighbouring columns of a row. It
//          goes over the windows that meet them, in a fixed order; which columns lie in a window is a word of bits.
// Needs:   pointers and the channels aligned to kWide elements; dilation 1.
// Bound:   memory: dx written once, the rest is small or shared by neighbours.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 2;
  static constexpr bool kAdaptive = true;
  static constexpr int kColumns = 4;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider inner;
  dnnarray::Divider groups;
  dnnarray::Divider heights;
  dnnarray::Divider depths;
  dnnarray::Axis<Config::kAdaptive> d;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
};
#define DNNARRAY_ENTRY pool_gather_channels_last_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kColumns = Config::kColumns;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kRule = Config::kRule;  // as in gather.cu
template <bool kLong>
struct CodeOf {
  using type = int;
};
template <>
struct CodeOf<true> {
  using type = long long;
};
using Code = CodeOf<kRule == kPlace>::type;

// What one window gives to the columns inside; of a maximum, to the one that `number`, the tap or the place of column
// 0, says.
__device__ __forceinline__ void add(A (&sum)[kColumns][kWide], const Vec<T, kWide>& grad,
                                    const Vec<Saved, kWide>& saved, A share, Code number, unsigned columns) {
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
    const A g = kRule == kMean ? widen(grad.at[v]) * share : widen(grad.at[v]);
    const Code distance = static_cast<Code>(saved.at[v]) - number;
    const unsigned to = kRule == kMean ? columns : distance >= 0 && distance < kColumns ? columns & 1u << distance : 0u;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c][v] += to >> c & 1 ? g : A(0);
  }
}

// `total` counts threads; `inner` are the vectors of channels, `groups` the threads along W, `heights` and `depths` the
// extents along H and D.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 4)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Saved* __restrict__ saved, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const WindowAxis axis_d = a.d, axis_h = a.h, axis_w = a.w;
  const Split vector = a.inner(thread), along = a.groups(vector.quotient);
  const Split down = a.heights(along.quotient), deep = a.depths(down.quotient);
  const int d = deep.rest, h = down.rest, w = along.rest * kColumns, channel = vector.rest * kWide,
            column = a.inner.divisor * kWide;
  const int first = axis_w.cover(w).first, last = axis_w.cover(min(w + kColumns, axis_w.extent) - 1).last;
  const Cover over_d = axis_d.cover(d), over_h = axis_h.cover(h);
  const Code place = static_cast<Code>((static_cast<long long>(d) * axis_h.extent + h) * axis_w.extent + w);

  A sum[kColumns][kWide] = {};
  for (int od = over_d.first; od <= over_d.last; ++od) {
    const Taps in_d = axis_d.taps(od);
    for (int oh = over_h.first; oh <= over_h.last; ++oh) {
      const Taps in_h = axis_h.taps(oh);
      const A count = A(axis_d.count(in_d, a.padded)) * A(axis_h.count(in_h, a.padded));
      const long long from = ((deep.quotient * axis_d.outputs + od) * axis_h.outputs + oh) * axis_w.outputs;
      const int row = ((d - in_d.start) * axis_h.window + h - in_h.start) * axis_w.window;
#pragma unroll 1
      for (int ow = first; ow <= last; ++ow) {
        const Taps in_w = axis_w.taps(ow);
        const long long at = (from + ow) * column + channel;
        const Vec<T, kWide> reg_grad = load<T, kWide>(grad + at);
        Vec<Saved, kWide> reg_saved{};
        if constexpr (kRule != kMean) reg_saved = load_wide<Saved, kWide>(saved + at);
        const A share = kRule == kMean ? inverse(count * A(axis_w.count(in_w, a.padded))) : A(1);
        add(sum, reg_grad, reg_saved, share, kRule == kPlace ? place : row + w - in_w.start,
            columns_inside<kColumns>(in_w, w));
      }
    }
  }

  dx += (((deep.quotient * axis_d.extent + d) * axis_h.extent + h) * axis_w.extent + w) * column + channel;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (w + c < axis_w.extent) store(dx + static_cast<long long>(c) * column, narrow_all<T, kWide>(sum[c]));
  }
}
