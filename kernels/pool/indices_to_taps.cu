// Places of the maxima of small windows in channels-last memory, as positions in the plane, to the taps that small_windows_gradient.cu and small_windows_gradient_mma.cu look for, a byte each.
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
#define DNNARRAY_ENTRY pool_indices_to_taps_default
#endif

using namespace dnnarray;
using Saved = Config::Saved;
constexpr int kWide = Config::kWide;
constexpr unsigned char kNowhere = 0xff;

// `total` counts threads. Divided is by `inner`, the vectors of channels, by the outputs along W and H, and, places, by the extent along W.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Saved* __restrict__ gmem_places, unsigned char* __restrict__ gmem_codes, long long total, long long inner,
                   long long by_inner, long long groups, long long by_group, long long strips, long long by_strip, long long extent,
                   long long by_extent, long long h0, long long h1, long long h2, long long h3, long long w0, long long w1, long long w2,
                   long long w3) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const Split vector = Divider(inner, by_inner)(thread), along = Divider(groups, by_group)(vector.quotient);
  const Axis<false> axis_h(h0, h1, h2, h3), axis_w(w0, w1, w2, w3);
  const int h = Divider(strips, by_strip)(along.quotient).rest * axis_h.stride - axis_h.before, w = along.rest * axis_w.stride - axis_w.before;
  const Divider by_width(extent, by_extent);
  const Vec<Saved, kWide> reg_places = load_wide<Saved, kWide>(gmem_places + thread * kWide);
  Vec<unsigned char, kWide> codes;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    const long long place = static_cast<long long>(reg_places.at[j]);
    const bool inside = place >= 0 && place >> 31 == 0;
    const Split at = by_width(inside ? place : 0);
    const int r = static_cast<int>(at.quotient) - h, s = at.rest - w;
    const bool seen = static_cast<unsigned>(r) < static_cast<unsigned>(axis_h.window) && static_cast<unsigned>(s) < static_cast<unsigned>(axis_w.window);
    codes.at[j] = inside && seen ? static_cast<unsigned char>(tap_code(r, s)) : kNowhere;
  }
  store(gmem_codes + thread * kWide, codes);
}
