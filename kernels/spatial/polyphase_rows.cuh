// Resampling by a whole factor, row by row: what a thread has of a row of x, and that row filtered. By the kernel's
// Config: kernels include it behind that.
//
// Layout:  a thread has kColumns neighbours on the side with fewer elements, or kChannels neighbouring channels, and as
//          many kFactorW on the other. What neighbouring threads both read comes from the L1.
#pragma once

#include "dnnarray/core/vec.cuh"
#include "spatial/polyphase.cuh"

namespace dnnarray {

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

// N neighbours, or zeros, as they come; one by one where memory is aligned to elements alone.
template <int N>
__device__ __forceinline__ Wordwise<T, N> load_if(const T* p, bool there) {
  Wordwise<T, N> found = {};
  if constexpr (kPiece == 1 && N > 1) {
    Vec<T, N> elements = {};
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (there) elements.at[i] = p[i];
    memcpy(&found, &elements, sizeof elements);
  } else {
    if (there) found = load_wordwise<T, N>(p);
  }
  return found;
}

// Where a thread stands in a row of x.
struct Place {
  int column, width;  // its first own element, of how many
  long long step;     // elements from one to the next

  __device__ __forceinline__ bool first() const { return column == 0; }
  __device__ __forceinline__ bool last() const { return column + Columns::kOwn == width; }
  __device__ __forceinline__ bool inside(int at, int count) const {
    return column + at >= 0 && column + at + count <= width;
  }
};

// The own elements of a row of x and those on both sides, as they come; zeros where there are none.
struct Raw {
  static constexpr int kSides = (Columns::kHalo + kSide - 1) / kSide;
  Wordwise<T, kIn * kChannels> own[Columns::kOwn / kIn];
  Wordwise<T, kSide * kChannels> before[kSides + 1],
      behind[kSides + 1];  // from inside to outside; the last one stands for none

  __device__ __forceinline__ Raw() = default;
  __device__ __forceinline__ Raw(const T* x, const Place& place, bool there) {
#pragma unroll
    for (int i = 0; i < Columns::kOwn; i += kIn) own[i / kIn] = load_if<kIn * kChannels>(x + i * place.step, there);
#pragma unroll
    for (int i = 0; i < Columns::kHalo; i += kSide) {
      before[i / kSide] =
          load_if<kSide * kChannels>(x + (-i - kSide) * place.step, there && place.inside(-i - kSide, kSide));
      behind[i / kSide] = load_if<kSide * kChannels>(x + (Columns::kOwn + i) * place.step,
                                                     there && place.inside(Columns::kOwn + i, kSide));
    }
  }
};

// The same, to compute with.
struct Window {
  A at[Columns::kWindow][kChannels];

  __device__ __forceinline__ Window(const Raw& raw, const Place& place) {
#pragma unroll
    for (int i = 0; i < Columns::kOwn; i += kIn) take<kIn>(raw.own[i / kIn], i);
#pragma unroll
    for (int i = 0; i < Columns::kHalo; i += kSide) side(raw.before[i / kSide], place, -i - kSide, -1);
#pragma unroll
    for (int i = 0; i < Columns::kHalo; i += kSide) side(raw.behind[i / kSide], place, Columns::kOwn + i, 1);
  }

 private:
  template <int N>
  __device__ __forceinline__ void take(const Wordwise<T, N * kChannels>& found, int first) {
    A part[N * kChannels];
    widen_all<T>(part, found);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int i = first + j + Columns::kHalo;
      if (i < 0 || i >= Columns::kWindow) continue;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) at[i][k] = part[j * kChannels + k];
    }
  }
  // kSide neighbours from `first` on; beyond the end of the row, those before them, from inside to outside.
  __device__ __forceinline__ void side(const Wordwise<T, kSide * kChannels>& found, const Place& place, int first,
                                       int outwards) {
    take<kSide>(found, first);
    if (kTransposed || place.inside(first, kSide)) return;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const int i = (outwards < 0 ? first + kSide - 1 - j : first + j) + Columns::kHalo;
      if (i < 0 || i >= Columns::kWindow) continue;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) at[i][k] = at[i - outwards][k];
    }
  }
};

// A row of results, or of sums on the way to them.
using Line = A[Columns::kOut][kChannels];

// The weights that the first and the last result along an axis have: where the gradient is taken at an end of the axis,
// that result gets the shares of those which would lie beyond it. Chosen once a thread; all other weights are
// constants.
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
    if (kShares && o == 0 && (Along::before(i) != 0.0 || (Along::kOut == 1 && Along::behind(i) != 0.0)))
      return first[i];
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

__device__ __forceinline__ void put(T* y, const Line& line, long long step) {
#pragma unroll
  for (int o = 0; o < Columns::kOut; o += kOut) {
    A part[kOut * kChannels];
#pragma unroll
    for (int j = 0; j < kOut * kChannels; ++j) part[j] = line[o + j / kChannels][j % kChannels];
    const auto narrowed = narrow_all<T>(part);
    if constexpr (kPiece == 1) {
#pragma unroll
      for (int j = 0; j < kOut * kChannels; ++j) y[o * step + j] = narrowed.at[j];
    } else {
      store(y + o * step, narrowed);
    }
  }
}

}  // namespace dnnarray
