// Places of the maxima of small windows in channels-last memory, as positions in the plane, to the taps that
// small_windows_gradient.cu and small_windows_gradient_mma.cu look for, a byte each.
//
// Layout:  a thread has kWide neighbouring channels of a window.
// Needs:   pointers and the channels aligned to kWide elements; dilation 1; planes below 2^31; windows of up to 8 x 8.
// Bound:   memory: places read once.

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Saved = long long;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider inner;
  dnnarray::Divider groups;
  dnnarray::Divider strips;
  dnnarray::Divider extent;
  dnnarray::Axis<false> h;
  dnnarray::Axis<false> w;
};
#define DNNARRAY_ENTRY pool_indices_to_taps_default
#endif

using namespace dnnarray;
using Saved = Config::Saved;
constexpr int kWide = Config::kWide;
constexpr unsigned char kNowhere = 0xff;

// `total` counts threads; `inner` are the vectors of channels, `groups` and `strips` the outputs along W and H; places
// are divided by the `extent` along W.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Saved* __restrict__ indices, unsigned char* __restrict__ taps,
                   const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Split vector = a.inner(thread), along = a.groups(vector.quotient);
  const Axis<false> axis_h = a.h, axis_w = a.w;
  const int h = a.strips(along.quotient).rest * axis_h.stride - axis_h.before,
            w = along.rest * axis_w.stride - axis_w.before;
  const Divider by_width = a.extent;
  const Vec<Saved, kWide> reg_indices = load_wide<Saved, kWide>(indices + thread * kWide);
  Vec<unsigned char, kWide> codes;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    const long long place = static_cast<long long>(reg_indices.at[j]);
    const bool inside = place >= 0 && place >> 31 == 0;
    const Split at = by_width(inside ? place : 0);
    const int r = static_cast<int>(at.quotient) - h, s = at.rest - w;
    const bool seen = static_cast<unsigned>(r) < static_cast<unsigned>(axis_h.window) &&
                      static_cast<unsigned>(s) < static_cast<unsigned>(axis_w.window);
    codes.at[j] = inside && seen ? static_cast<unsigned char>(tap_code(r, s)) : kNowhere;
  }
  store(taps + thread * kWide, codes);
}
