// Pooling with small windows whose rows a thread walks down: what it keeps of a row of x, what comes of the rows of a
// window, and where it goes. For kernels that take their settings from Config; see small_windows.cu for the layout.
#pragma once

#include "pool/best.cuh"
#include "pool/strip.cuh"

namespace dnnarray {

using R = Config::Result;
constexpr int kMax = 0, kIndices = 1, kTap = 2, kMean = 3, kNorm = 4,
              kReduction = Config::kReduction;  // as in direct.cu
using S = Strip<Config, kReduction <= kTap>;
using A = S::A;
constexpr bool kLast = Config::kLast;
constexpr int kResults = S::kResults, kPiece = Config::kPiece, kSteps = Config::kSteps, kExponent = Config::kExponent;
constexpr int kWindowH = S::kWindowH, kWindowW = S::kWindowW, kStrideH = Config::kStrideH, kStrideW = S::kStrideW;
constexpr int kAcross = kLast ? 1 : kResults;                         // windows beside each other
constexpr int kKept = kWindowH > kStrideH ? kWindowH - kStrideH : 0;  // rows that a window shares with the next

constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap,
               kHalves = sizeof(S::T) == 2 && !Number<S::T>::kInteger;
constexpr bool kScales =
    kReduction == kNorm && Config::kExponent == 2 && !kSquaresFit<S::T>;  // whether a norm may need its elements scaled
// Whether one value for each result is kept of a row of x, or the row as it is.
constexpr bool kByRows = kPlaces || (kLast && (kReduction == kMax || kReduction >= kMean));

// The summand of an element.
__device__ __forceinline__ A term(A x) { return kReduction == kMean ? x : kExponent == 1 ? magnitude(x) : x * x; }

// What is known of a window, or of two of a half type.
#if __CUDA_ARCH__ >= 900
constexpr bool kPair = kPlaces && kHalves && kResults % 2 == 0;
#else
constexpr bool kPair = false;
#endif
using B = Best<S::T, kPair, Config::kMagnitude>;
template <typename Row>
__device__ __forceinline__ B entry_of(const Row& row, int o, int s, int code) {
  if constexpr (kPair) {
    return B(pair_of(row.tap(o, s), row.tap(o + 1, s)), B::repeated(code));
  } else {
    return B(S::N::widened(row.tap(o, s)), code);
  }
}

static_assert(!kPlaces || kResults * kSteps <= 32, "a bit for each result");

// The maximum or the sum of what stands beside each other in a row, for each channel.
struct Line {
  S::Body best;
  A sum[kResults];
  B found[kResults / B::kEach];

  __device__ __forceinline__ Line() {}
  // The row is the thread's `number`th.
  __device__ __forceinline__ Line(const S::Row& row, int number) {
    if constexpr (kPlaces) {
#pragma unroll
      for (int o = 0; o < kResults; o += B::kEach) {
        B& all = found[o / B::kEach];
        all = entry_of(row, o, 0, tap_code(number, 0));
#pragma unroll
        for (int s = 1; s < kWindowW; ++s) all.meet(entry_of(row, o, s, tap_code(number, s)));
      }
      return;
    }
    best = row.body[0];
#pragma unroll
    for (int s = 1; s < kWindowW && kReduction == kMax; ++s) best.enlarge(row.body[s]);
#pragma unroll
    for (int o = 0; o < kResults && kReduction != kMax; ++o) {
      sum[o] = term(S::N::widened(row.tap(o, 0)));
#pragma unroll
      for (int s = 1; s < kWindowW; ++s) sum[o] += term(S::N::widened(row.tap(o, s)));
    }
  }
};

// The sum over each window of term(x): first down its columns, then over these.
__device__ __forceinline__ void sum_up(A (&sum)[kResults], const S::Rows& rows) {
  A all[S::kCells];
#pragma unroll
  for (int i = 0; i < S::kCells; ++i) {
    all[i] = term(S::N::widened(rows[0].cell(i)));
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) all[i] += term(S::N::widened(rows[r].cell(i)));
  }
#pragma unroll
  for (int o = 0; o < kResults; ++o) {
    sum[o] = all[S::cell_of(o, 0)];
#pragma unroll
    for (int s = 1; s < kWindowW; ++s) sum[o] += all[S::cell_of(o, s)];
  }
}
__device__ __forceinline__ void sum_up(A (&sum)[kResults], const Line (&lines)[kWindowH]) {
#pragma unroll
  for (int o = 0; o < kResults; ++o) {
    sum[o] = lines[0].sum[o];
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) sum[o] += lines[r].sum[o];
  }
}

// What a thread keeps of a row.
template <bool kAcross>
struct Seen {
  using type = S::Rows;
  static __device__ __forceinline__ S::Row entry(const S::Row& row, int) { return row; }
};
template <>
struct Seen<true> {
  using type = Line[kWindowH];
  static __device__ __forceinline__ Line entry(const S::Row& row, int number) { return Line(row, number); }
};

// Sums, rounded.
template <typename U>
__device__ __forceinline__ void put_sums(Vec<U, kResults>& y, const A (&sum)[kResults]) {
  if constexpr (sizeof(U) == 2 && !Number<U>::kInteger) {
    y = narrow_all<U, kResults>(sum);
  } else {
#pragma unroll
    for (int o = 0; o < kResults; ++o) y.at[o] = Number<U>::narrowed(sum[o]);
  }
}

// A maximum is kept as it is; or its tap, in another type.
template <typename U>
__device__ __forceinline__ void put_maximum(U& y, U best, int tap) {
  y = best;
}
template <typename U, typename V>
__device__ __forceinline__ void put_maximum(U& y, V best, int tap) {
  y = Number<U>::narrowed(tap);
}

// The results of the windows in row p of y, of which q is the first; x from row h on lies in `rows`.
struct Results {
  Vec<R, kResults> y;
  Vec<long long, kResults> indices;
  unsigned odd = 0;  // which are to be looked at again, as bits

  __device__ __forceinline__ void maximum(const S::Rows& rows, const S&, int, int, int) {
    const Vec<S::T, kResults> best = S::maxima(S::down(rows));
#pragma unroll
    for (int o = 0; o < kResults; ++o) put_maximum(y.at[o], best.at[o], 0);
  }
  __device__ __forceinline__ void maximum(const Line (&lines)[kWindowH], const S& source, int h, int number,
                                          int count) {
    if constexpr (kPlaces) {
      place(lines, source, h, number, count);
      return;
    }
    S::Body best = lines[0].best;
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) best.enlarge(lines[r].best);
#pragma unroll
    for (int o = 0; o < kResults; ++o) put_maximum(y.at[o], best.at(o), 0);
  }

  // Maxima and where they stand; the windows' first row of x is row h, and the thread's row `number`.
  __device__ __forceinline__ void place(const Line (&lines)[kWindowH], const S& source, int h, int number, int count) {
    B best[kResults / B::kEach];
    B::Watch special = 0;
#pragma unroll
    for (int i = 0; i < kResults / B::kEach; ++i) {
      best[i] = lines[0].found[i];
#pragma unroll
      for (int r = 1; r < kWindowH; ++r) best[i].meet(lines[r].found[i]);
      best[i].watch(special);
    }
    const int first = h * source.width + source.w - S::kBefore - number * source.width;
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      const B& b = best[o / B::kEach];
      const int code = b.where(o % B::kEach);
      put_maximum(y.at[o], b.element(o % B::kEach), code - tap_code(number, 0));
      if constexpr (kReduction == kIndices) {
        indices.at[o] =
            first + (kLast ? 0 : o * kStrideW) + code / tap_code(1, 0) * source.width + code % tap_code(1, 0);
      }
    }
    if (B::is_special(special)) {
#pragma unroll
      for (int o = 0; o < kResults; ++o) {
        const A found = best[o / B::kEach].at(o % B::kEach);
        if (o < count && (found == S::nothing() || found != found)) odd |= 1u << o;
      }
    }
  }

  template <typename Rows>
  __device__ __forceinline__ void mean(const Rows& seen, A down, const A (&across)[kAcross]) {
    A sum[kResults];
    sum_up(sum, seen);
#pragma unroll
    for (int o = 0; o < kResults; ++o) sum[o] *= across[o % kAcross] * down;
    put_sums(y, sum);
  }

  template <typename Rows>
  __device__ __forceinline__ void norm(const Rows& seen, int count) {
    A sum[kResults];
    sum_up(sum, seen);
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      if (kScales && o < count && out_of_range(sum[o])) odd |= 1u << o;
      if constexpr (kExponent == 2) sum[o] = near_root(sum[o]);
    }
    put_sums(y, sum);
  }
};

// kPiece neighbours of a result at a time; along W only those that exist.
template <typename U>
__device__ __forceinline__ void put(U* y, const Vec<U, kResults>& results, int count) {
#pragma unroll
  for (int o = 0; o < kResults; o += kPiece) {
    Vec<U, kPiece> piece;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.at[k] = results.at[o + k];
    if (kLast || o < count) store_wide(y + o, piece);
  }
}

// What a thread does: `count` results of each of the rows [p, end) of y, which lie `row` elements apart from y on; q is
// the first of a row.
struct Task {
  S source;
  long long y;
  int row, q, count, p, end;

  // Once more, norms whose squares have left the range: those whose bits are set.
  __device__ __forceinline__ void scale(R* gmem_y, int before, unsigned odd) const {
    for (; odd != 0; odd &= odd - 1) {
      const int bit = __ffs(odd) - 1, step = bit / kResults, o = bit % kResults;
      const int left = (kLast ? 0 : o * kStrideW) - S::kBefore;
      const S::Scaled found =
          source.scaled_norm<kWindowH, kWindowW>((p + step) * kStrideH - before, left, kLast ? o : 0);
      gmem_y[y + static_cast<long long>(step) * row + o] = Number<R>::narrowed(found.scale * found.norm);
    }
  }
  // Once more, where maxima stand: where nothing is larger than what is outside of x, the first element that is inside;
  // of NaN the last.
  __device__ __forceinline__ void place(R* gmem_y, long long* gmem_indices, int before, unsigned odd) const {
    for (; odd != 0; odd &= odd - 1) {
      const int bit = __ffs(odd) - 1, step = bit / kResults, o = bit % kResults, top = (p + step) * kStrideH - before;
      const int left = (kLast ? 0 : o * kStrideW) - S::kBefore;
      int code = tap_code(max(-top, 0), max(-left - source.w, 0));
#pragma unroll 1
      for (int i = 0; i < S::kTaps; ++i) {
        const int h = top + i / kWindowW, c = left + i % kWindowW;
        if (!source.inside(h, c)) continue;
        const A x =
            S::N::widened(source.x[static_cast<long long>(h) * source.row + c * source.column + (kLast ? o : 0)]);
        if (x != x) code = tap_code(i / kWindowW, i % kWindowW);
      }
      const long long at = y + static_cast<long long>(step) * row + o;
      if constexpr (kReduction == kTap) gmem_y[at] = Number<R>::narrowed(code);
      if constexpr (kReduction == kIndices)
        gmem_indices[at] = (top + code / tap_code(1, 0)) * source.width + source.w + left + code % tap_code(1, 0);
    }
  }
};

}  // namespace dnnarray
