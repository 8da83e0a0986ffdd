// y[plane, p, q] = sum over the taps of p and of q of the product of their weights * x[plane, tap of p, tap of q] where
// each extent is a whole multiple of the other side's: the weights are constants. The gradient is the same with the
// transposed taps.
//
// Layout:  x and y (planes, height, width), or (planes, height, width, C) with kChannels > 1 neighbours of C a thread.
//          A thread has kRows rows of kColumns neighbours on the side with fewer elements, and as many kFactorH x
//          kFactorW on the other; it filters each row of x along W, and adds it to the rows of y that it is a tap of.
//          Neighbouring threads have neighbours along W; what they both read comes from the L1.
// Needs:   kRows and kColumns divide the smaller extents, C a multiple of kChannels; pointers aligned to kPiece
//          elements.
// Bound:   memory.

#include "dnnarray/core/division.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = 2;
  static constexpr bool kUp = true;
  static constexpr bool kTransposed = false;
  static constexpr int kFactorH = 2;
  static constexpr int kFactorW = 2;
  static constexpr int kRows = 2;
  static constexpr int kColumns = 2;
  static constexpr int kChannels = 1;
  static constexpr int kPiece = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long threads;
  long long inner;
  long long groups;
  long long strips;
  long long inner_divisor;
  long long groups_divisor;
  long long strips_divisor;
};
#define DNNARRAY_ENTRY spatial_resize_polyphase_default
#endif

#include "spatial/polyphase_rows.cuh"

using namespace dnnarray;

// Row i of the window of rows, to all rows of y that it is a tap of; `begun` says which of them have had one.
__device__ __forceinline__ void spread(Line (&y)[Rows::kOut], bool (&begun)[Rows::kOut], const Line& line, int i,
                                       const Ends<Rows>& weights) {
#pragma unroll
  for (int r = 0; r < Rows::kOut; ++r) {
    if (!Ends<Rows>::counts(r, i)) continue;
#pragma unroll
    for (int o = 0; o < Columns::kOut; ++o) add(y[r][o], line[o], weights.weight(r, i), !begun[r]);
    begun[r] = true;
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  unsigned index = blockIdx.x * Config::kThreads + threadIdx.x;
  if (index >= a.threads) return;
  const Divisor by_inner(a.inner, a.inner_divisor), by_groups(a.groups, a.groups_divisor),
      by_strips(a.strips, a.strips_divisor);
  const int channel = kChannels > 1 ? static_cast<int>(by_inner.remainder(index)) * kChannels : 0;
  if (kChannels > 1) index = by_inner.quotient(index);
  const int group = static_cast<int>(by_groups.remainder(index));
  index = by_groups.quotient(index);
  const int strip = static_cast<int>(by_strips.remainder(index));
  const long long plane = by_strips.quotient(index), step = kChannels > 1 ? a.inner * kChannels : 1;
  const Place place{group * Columns::kOwn, static_cast<int>(a.groups) * Columns::kOwn, step};
  const int height = static_cast<int>(a.strips) * Rows::kOwn, row = strip * Rows::kOwn;
  const long long line = place.width * step, out_line = a.groups * Columns::kOut * step;
  const T* source = x + (plane * height * place.width + place.column) * step + channel;
  const T* above = source + (row - Rows::kHalo) * line;  // the first row of the window, which may not be there

  const Ends<Columns> across(place.first(), place.last());
  const Ends<Rows> down(strip == 0, strip + 1 == a.strips);
  Line sums[Rows::kOut] = {};
  bool begun[Rows::kOut] = {};
#pragma unroll
  for (int i = 0; i < Rows::kWindow; ++i) {
    int at = row + i - Rows::kHalo;
    const bool there = at >= 0 && at < height;
    if (!kTransposed) at = at < 0 ? 0 : at < height ? at : height - 1;
    Line filtered = {};
    filter(filtered,
           Window(Raw(kTransposed ? above + i * line : source + at * line, place, !kTransposed || there), place),
           across);
    spread(sums, begun, filtered, i, down);
  }
  T* target = y + (plane * a.strips + strip) * Rows::kOut * out_line + group * Columns::kOut * step + channel;
#pragma unroll
  for (int o = 0; o < Rows::kOut; ++o) put(target + o * out_line, sums[o], step);
}
