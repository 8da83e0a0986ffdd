// y[plane, p, q] = sum over the taps of p and of q of the product of their weights * x[plane, tap of p, tap of q] where each extent is a whole
// multiple of the other side's: the weights are constants. The gradient is the same with the transposed taps.
//
// Layout:  x and y (planes, height, width), or (planes, height, width, C) with kChannels > 1 neighbours of C a thread. A thread has kRows rows of
//          kColumns neighbours on the side with fewer elements, and as many kFactorH x kFactorW on the other; it filters each row of x along W, and
//          adds it to the rows of y that it is a tap of. Neighbouring threads have neighbours along W; what they both read comes from the L1.
// Needs:   kRows and kColumns divide the smaller extents, C a multiple of kChannels; pointers aligned to kPiece elements.
// Bound:   memory.

#include "dnnarray/division.cuh"
#include "dnnarray/polyphase.cuh"
#include "dnnarray/vec.cuh"

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
#define DNNARRAY_ENTRY resize_polyphase_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kChannels = Config::kChannels, kPiece = Config::kPiece;
constexpr bool kTransposed = Config::kTransposed;
using Rows = Polyphase<Config::kMode, Config::kUp, kTransposed, Config::kFactorH, Config::kRows>;
using Columns = Polyphase<Config::kMode, Config::kUp, kTransposed, Config::kFactorW, Config::kColumns>;

// Elements along a row that are moved at once: of the own ones, of the results, and of those on each side.
constexpr int piece_of(int elements) { return kChannels > 1 ? 1 : elements < kPiece ? elements : kPiece; }
constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
constexpr int kIn = piece_of(Columns::kOwn), kOut = piece_of(Columns::kOut);
constexpr int kSide = power_of_two(Columns::kHalo) <= kIn ? power_of_two(Columns::kHalo) : 1;

// N neighbours, or zeros. Filled and loaded by words: halves that may or may not have been loaded are merged one by one otherwise.
template <int N>
__device__ __forceinline__ Vec<T, N> load_if(const T* p, bool there) {
  Vec<T, N> found;
  if constexpr (sizeof found % 4 == 0) {
    Vec<unsigned, sizeof found / 4> words = {};
    if (there) words = load<unsigned, sizeof found / 4>(reinterpret_cast<const unsigned*>(p));
    memcpy(&found, &words, sizeof found);
  } else {
    static_assert(N == 1);
    found.at[0] = narrow<T>(0);
    if (there) found.at[0] = *p;
  }
  return found;
}

// Where a thread stands in a row of x.
struct Place {
  int column, width;  // its first own element, of how many
  long long step;     // elements from one to the next

  __device__ __forceinline__ bool first() const { return column == 0; }
  __device__ __forceinline__ bool last() const { return column + Columns::kOwn == width; }
  __device__ __forceinline__ bool inside(int at, int count) const { return column + at >= 0 && column + at + count <= width; }
};

// The own elements of a row of x (zeros if it is not there) and those on both sides.
struct Window {
  A at[Columns::kWindow][kChannels];

  __device__ __forceinline__ Window(const T* x, const Place& place, bool there) {
#pragma unroll
    for (int i = 0; i < Columns::kOwn; i += kIn) take<kIn>(x, place, i, there);
#pragma unroll
    for (int i = 0; i < Columns::kHalo; i += kSide) side<kSide>(x, place, -i - kSide, -1, there);
#pragma unroll
    for (int i = 0; i < Columns::kHalo; i += kSide) side<kSide>(x, place, Columns::kOwn + i, 1, there);
  }

 private:
  template <int N>
  __device__ __forceinline__ void take(const T* x, const Place& place, int first, bool there) {
    A part[N * kChannels];
    widen_all<T>(part, load_if<N * kChannels>(x + first * place.step, there));
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = first + j + Columns::kHalo;
      if (i < 0 || i >= Columns::kWindow) continue;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) at[i][k] = part[j * kChannels + k];
    }
  }
  // N neighbours from `first` on; beyond the end of the row, those before them, from inside to outside.
  template <int N>
  __device__ __forceinline__ void side(const T* x, const Place& place, int first, int outwards, bool there) {
    const bool inside = place.inside(first, N);
    take<N>(x, place, first, there && inside);
    if (kTransposed || inside) return;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = (outwards < 0 ? first + N - 1 - j : first + j) + Columns::kHalo;
      if (i < 0 || i >= Columns::kWindow) continue;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) at[i][k] = at[i - outwards][k];
    }
  }
};

// A row of results, or of sums on the way to them.
using Line = A[Columns::kOut][kChannels];

// The weights that the first and the last result along an axis have: where the gradient is taken at an end of the axis, that result gets the shares of
// those which would lie beyond it. Chosen once a thread; all other weights are constants.
template <typename Along>
struct Ends {
  A first[Along::kWindow], last[Along::kWindow];

  __device__ __forceinline__ Ends(bool at_first, bool at_last) {
#pragma unroll
    for (int i = 0; i < Along::kWindow; ++i) {
      const double low = Along::weight(0, i), high = Along::weight(Along::kOut - 1, i);
      const bool both = Along::kOut == 1 && at_last;
      first[i] = A(low) + (at_first ? A(Along::before(i)) : A(0)) + (both ? A(Along::behind(i)) : A(0));
      last[i] = A(high) + (at_last ? A(Along::behind(i)) : A(0));
    }
  }
  // Whether element i of the window counts in result o at all, and its weight there.
  static __device__ __forceinline__ bool counts(int o, int i) {
    if (Along::weight(o, i) != 0.0) return true;
    return kShares && ((o == 0 && Along::before(i) != 0.0) || (o == Along::kOut - 1 && Along::behind(i) != 0.0));
  }
  __device__ __forceinline__ A weight(int o, int i) const {
    if (kShares && o == 0 && (Along::before(i) != 0.0 || (Along::kOut == 1 && Along::behind(i) != 0.0))) return first[i];
    if (kShares && o == Along::kOut - 1 && Along::behind(i) != 0.0) return last[i];
    return A(Along::weight(o, i));
  }

 private:
  static constexpr bool kShares = kTransposed && Along::kReach > 0;
};

// sum += weight * of; the first term of a sum takes its place.
__device__ __forceinline__ void add(A (&sum)[kChannels], const A (&of)[kChannels], A weight, bool first) {
#pragma unroll
  for (int k = 0; k < kChannels; ++k) sum[k] = first ? weight * of[k] : sum[k] + weight * of[k];
}

// A row of x, filtered.
__device__ __forceinline__ void filter(Line& line, const Window& x, const Ends<Columns>& weights) {
#pragma unroll
  for (int o = 0; o < Columns::kOut; ++o) {
    bool first = true;
#pragma unroll
    for (int i = 0; i < Columns::kWindow; ++i) {
      if (!Ends<Columns>::counts(o, i)) continue;
      add(line[o], x.at[i], weights.weight(o, i), first);
      first = false;
    }
  }
}

// Row i of the window of rows, to all rows of y that it is a tap of; `begun` says which of them have had one.
__device__ __forceinline__ void spread(Line (&y)[Rows::kOut], bool (&begun)[Rows::kOut], const Line& line, int i, const Ends<Rows>& weights) {
#pragma unroll
  for (int r = 0; r < Rows::kOut; ++r) {
    if (!Ends<Rows>::counts(r, i)) continue;
#pragma unroll
    for (int o = 0; o < Columns::kOut; ++o) add(y[r][o], line[o], weights.weight(r, i), !begun[r]);
    begun[r] = true;
  }
}

__device__ __forceinline__ void put(T* y, const Line& line, long long step) {
#pragma unroll
  for (int o = 0; o < Columns::kOut; o += kOut) {
    A part[kOut * kChannels];
#pragma unroll
    for (int j = 0; j < kOut * kChannels; ++j) part[j] = line[o + j / kChannels][j % kChannels];
    store(y + o * step, narrow_all<T>(part));
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long threads, long long inner, long long groups, long long strips,
                   long long inner_divisor, long long groups_divisor, long long strips_divisor) {
  unsigned index = blockIdx.x * Config::kThreads + threadIdx.x;
  if (index >= threads) return;
  const Divisor by_inner(inner, inner_divisor), by_groups(groups, groups_divisor), by_strips(strips, strips_divisor);
  const int channel = kChannels > 1 ? static_cast<int>(by_inner.remainder(index)) * kChannels : 0;
  if (kChannels > 1) index = by_inner.quotient(index);
  const int group = static_cast<int>(by_groups.remainder(index));
  index = by_groups.quotient(index);
  const int strip = static_cast<int>(by_strips.remainder(index));
  const long long plane = by_strips.quotient(index), step = kChannels > 1 ? inner * kChannels : 1;
  const Place place{group * Columns::kOwn, static_cast<int>(groups) * Columns::kOwn, step};
  const int height = static_cast<int>(strips) * Rows::kOwn, row = strip * Rows::kOwn;
  const long long line = place.width * step;
  const T* source = x + (plane * height * place.width + place.column) * step + channel;
  const T* above = source + (row - Rows::kHalo) * line;  // the first row of the window, which may not be there

  const Ends<Columns> across(place.first(), place.last());
  const Ends<Rows> down(strip == 0, strip + 1 == strips);
  Line sums[Rows::kOut] = {};
  bool begun[Rows::kOut] = {};
#pragma unroll
  for (int i = 0; i < Rows::kWindow; ++i) {
    int at = row + i - Rows::kHalo;
    const bool there = at >= 0 && at < height;
    if (!kTransposed) at = at < 0 ? 0 : at < height ? at : height - 1;
    Line filtered = {};
    filter(filtered, Window(kTransposed ? above + i * line : source + at * line, place, !kTransposed || there), across);
    spread(sums, begun, filtered, i, down);
  }
  const long long out_line = groups * Columns::kOut * step;
  T* target = y + (plane * strips + strip) * Rows::kOut * out_line + group * Columns::kOut * step + channel;
#pragma unroll
  for (int o = 0; o < Rows::kOut; ++o) put(target + o * out_line, sums[o], step);
}
