// What a thread sees of x when it walks down rows of small windows, for pooling and its gradients: rows in registers,
// and maxima over them.
#pragma once

#include "dnnarray/mma/warp.cuh"
#include "dnnarray/ptx/memory.cuh"
#include "dnnarray/ptx/opaque.cuh"
#include "pool/window.cuh"

namespace dnnarray {

// What another lane of the warp has; of what is smaller than a word, its bits.
template <typename T>
__device__ __forceinline__ T shuffled(T x, int lane) {
  if constexpr (sizeof(T) >= 4) {
    return __shfl_sync(kAllLanes, x, lane);
  } else {
    unsigned bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = __shfl_sync(kAllLanes, bits, lane);
    memcpy(&x, &bits, sizeof x);
    return x;
  }
}

// An element of a floating type that has been asked for: nothing is done with it before it is used. (A bfloat16 that
// may or may not have been loaded is widened where it was loaded otherwise, which waits for it.)
template <typename T>
__device__ __forceinline__ T under_way(T x) {
  if constexpr (sizeof(T) == 2) opaque_movable(x.bits);
  return x;
}

// A vector in registers; halves lie in words, so that what may or may not have been loaded is moved by words.
template <typename T, int N, bool kWords = sizeof(T) == 2 && !Number<T>::kInteger && N % 2 == 0>
struct Packed {
  Vec<T, N> v;
  __device__ __forceinline__ T at(int i) const { return v.at[i]; }
  static constexpr int kPart = 1;  // elements of a word
  __device__ __forceinline__ T word(int i) const { return v.at[i]; }
  static __device__ __forceinline__ T of_word(T word, int i) { return word; }
  __device__ __forceinline__ void fill(T x) {
#pragma unroll
    for (int j = 0; j < N; ++j) v.at[j] = x;
  }
  __device__ __forceinline__ void read(const T* p) { v = load<T, N>(p); }
  __device__ __forceinline__ void unsign() {
#pragma unroll
    for (int j = 0; j < N; ++j) v.at[j] = Number<T>::narrowed(magnitude(Number<T>::widened(v.at[j])));
  }
  __device__ __forceinline__ void enlarge(const Packed& other) { v = larger(v, other.v); }
};
template <typename T, int N>
struct Packed<T, N, true> {
  Vec<unsigned, N / 2> v;
  __device__ __forceinline__ T at(int i) const { return {static_cast<unsigned short>(v.at[i / 2] >> i % 2 * 16)}; }
  static constexpr int kPart = 2;
  __device__ __forceinline__ unsigned word(int i) const { return v.at[i / 2]; }
  static __device__ __forceinline__ T of_word(unsigned word, int i) {
    return {static_cast<unsigned short>(word >> i % 2 * 16)};
  }
  __device__ __forceinline__ void fill(T x) {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) v.at[j] = x.bits * 0x10001u;
  }
  __device__ __forceinline__ void read(const T* p) { v = load<unsigned, N / 2>(reinterpret_cast<const unsigned*>(p)); }
  __device__ __forceinline__ void unsign() {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) v.at[j] &= 0x7fff7fffu;
  }
  __device__ __forceinline__ void enlarge(const Packed& other) {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) v.at[j] = larger_pair(v.at[j], other.v.at[j], T{});
  }
};

// What was saved of several windows; bytes lie in words, as halves do in a Packed.
template <typename U, int N, bool kWords = sizeof(U) == 1 && N % 4 == 0>
struct Codes {
  Vec<U, N> v;
  __device__ __forceinline__ U at(int i) const { return v.at[i]; }
  __device__ __forceinline__ void fill(U x) {
#pragma unroll
    for (int j = 0; j < N; ++j) v.at[j] = x;
  }
  __device__ __forceinline__ void read(const U* p) { v = load_wide<U, N>(p); }
  __device__ __forceinline__ unsigned halves(int i) const {
    return static_cast<unsigned>(v.at[i]) | (i + 1 < N ? static_cast<unsigned>(v.at[i + 1 < N ? i + 1 : i]) << 16 : 0);
  }
};
template <typename U, int N>
struct Codes<U, N, true> {
  Vec<unsigned, N / 4> v;
  __device__ __forceinline__ U at(int i) const { return static_cast<U>(v.at[i / 4] >> i % 4 * 8); }
  __device__ __forceinline__ void fill(U x) {
#pragma unroll
    for (int j = 0; j < N / 4; ++j) v.at[j] = static_cast<unsigned char>(x) * 0x1010101u;
  }
  __device__ __forceinline__ void read(const U* p) { v = load<unsigned, N / 4>(reinterpret_cast<const unsigned*>(p)); }
  // Numbers i and i + 1 as the halves of a word, for an even i.
  __device__ __forceinline__ unsigned halves(int i) const {
    return __byte_perm(v.at[i / 4], 0, i % 4 ? 0x4342 : 0x4140);
  }
};

// 1 / n for 1 <= n <= kMost, chosen among constants. (In a loop over k the compiler finds that n is k, and divides.)
template <int kMost, typename A>
__device__ __forceinline__ A share_of(int n) {
  constexpr A share = A(1) / A(kMost);
  if constexpr (kMost == 1) {
    return share;
  } else {
    return n == kMost ? share : share_of<kMost - 1, A>(n);
  }
}

// C is the Config of a kernel. Channels-last (kLast): a thread has one window of kWide neighbouring channels.
// Channels-first: kGroup windows beside each other, and reads vectors of kWide elements along W (kGroup x kStrideW is a
// multiple of kWide) with single elements on both sides; kLends: these are fetched from neighbouring lanes, so that all
// lanes of a warp read together. kLowest: what is outside of x is less than every number, else 0. kMagnitude: elements
// are taken without their sign.
template <typename C, bool kLowest>
struct Strip {
  using T = typename C::Element;
  using N = Number<T>;
  using A = typename N::type;
  using V = Vec<T, C::kWide>;
  static constexpr bool kLast = C::kLast;
  static constexpr int kWide = C::kWide, kBefore = C::kBefore, kWindowH = C::kWindowH, kWindowW = C::kWindowW,
                       kStrideW = C::kStrideW;
  static constexpr int kTaps = kWindowH * kWindowW, kResults = kLast ? kWide : C::kGroup;

  // The columns that a thread looks at begin kBefore to the left of its own ones, which are kSpan.
  static constexpr int kSpan = (kLast ? 1 : kResults) * kStrideW, kColumns = kSpan - kStrideW + kWindowW;
  static constexpr int kLeft = kLast ? 0 : kBefore,
                       kRight = kLast || kColumns - kBefore < kSpan ? 0 : kColumns - kBefore - kSpan;
  static constexpr int kBody = kLast ? kWindowW : (kColumns - kLeft - kRight + kWide - 1) / kWide,
                       kHalo = kLeft + kRight;
  static constexpr int kCells = kBody * kWide + kHalo;
  static constexpr bool kLends = C::kLends && kHalo > 0 && kBody* kWide == kSpan&& kSpan >= kLeft&& kSpan >= kRight;

  // Which cell of a row is tap s of the window of result o.
  static __device__ constexpr int cell_of(int o, int s) {
    const int column = o * kStrideW + s - kBefore, beyond = kBody * kWide + kLeft + column;
    return kLast ? s * kWide + o : column < 0 ? beyond : column < kSpan ? column : beyond - kSpan;
  }
  using Body = Packed<T, kWide>;
  struct Row {
    Body body[kBody];
    T halo[kHalo > 0 ? kHalo : 1];
    __device__ __forceinline__ T cell(int i) const {
      return i < kBody * kWide ? body[i / kWide].at(i % kWide) : halo[i - kBody * kWide];
    }
    __device__ __forceinline__ T tap(int o, int s) const { return cell(cell_of(o, s)); }
  };
  using Rows = Row[kWindowH];

  static __device__ __forceinline__ A nothing() { return kLowest && !C::kMagnitude ? N::lowest() : A(0); }
  static __device__ __forceinline__ A tap(const Rows& rows, int o, int i) {
    return N::widened(rows[i / kWindowW].tap(o, i % kWindowW));
  }

  const T* x;  // the first own column, in row 0
  int height, width, row, column, w;
  bool
      first = true,
      last =
          true;  // of the lanes that have this row: those that no neighbour lends what stands to the left, to the right

  __device__ __forceinline__ bool inside(int h, int c) const {
    return static_cast<unsigned>(h) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(w + c) < static_cast<unsigned>(width);
  }
  __device__ __forceinline__ Row read(int h) const {
    const T* from = x + static_cast<long long>(h) * row;
    Row r;
#pragma unroll
    for (int b = 0; b < kBody; ++b) {
      const int c = kLast ? b - kBefore : b * kWide;
      r.body[b].fill(N::narrowed(nothing()));
      if (inside(h, c)) r.body[b].read(from + c * column);
      if constexpr (C::kMagnitude) r.body[b].unsign();
    }
    decltype(r.body[0].word(0)) lent{};  // by a neighbour
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
      const int c = i < kLeft ? i - kLeft : kSpan + i - kLeft;
      const bool own = !kLends || (i < kLeft ? first : last);
      r.halo[i] = own && inside(h, c) ? from[c] : N::narrowed(nothing());
      if constexpr (kLends) {
        const int theirs = i < kLeft ? kSpan + c : c - kSpan, lane = threadIdx.x + (i < kLeft ? kWarp - 1 : 1);
        if (i == 0 || i == kLeft || theirs % Body::kPart == 0)
          lent = shuffled(r.body[theirs / kWide].word(theirs % kWide), lane % kWarp);
        if (!own) r.halo[i] = Body::of_word(lent, theirs);
      }
      if constexpr (C::kMagnitude) r.halo[i] = N::narrowed(magnitude(N::widened(r.halo[i])));
    }
    return r;
  }

  // visit(x) for each element of a window of kH x kW, one by one, whose tap 0 is in row `top` and column `left` from
  // the own one, of channel v; for what is seldom done.
  template <int kH, int kW, typename Visit>
  __device__ __forceinline__ void each(int top, int left, int v, Visit visit) const {
#pragma unroll 1
    for (int i = 0; i < kH * kW; ++i) {
      const int h = top + i / kW, c = left + i % kW;
      if (inside(h, c)) visit(N::widened(x[static_cast<long long>(h) * row + c * column + v]));
    }
  }
  // The largest magnitude in such a window; its Euclidean norm, as what the elements are divided by and the norm of the
  // shares.
  template <int kH, int kW>
  __device__ __forceinline__ A largest(int top, int left, int v) const {
    A most = 0;
    each<kH, kW>(top, left, v, [&](A u) { most = wins(magnitude(u), most) ? magnitude(u) : most; });
    return most;
  }
  struct Scaled {
    A scale, norm;
  };
  template <int kH, int kW>
  __device__ __forceinline__ Scaled scaled_norm(int top, int left, int v) const {
    const A scale = scale_of(largest<kH, kW>(top, left, v));
    A sum = 0;
    each<kH, kW>(top, left, v, [&](A u) { sum += (u / scale) * (u / scale); });
    return {scale, root(sum, A(2))};
  }

  // What an Euclidean norm gives to one element, in row `row` and column c from the own one, of channel v, with all
  // norms of scaled elements. The gradients `grad` are of the windows in row 0 and column q, which begins with the own
  // column.
  template <int kH, int kW>
  __device__ __forceinline__ A exact_slope(const T* grad, const Axis<false>& h, const Axis<false>& w_axis, int q,
                                           int row_number, int c, int v) const {
    const A element = N::widened(x[static_cast<long long>(row_number) * row + c * column + v]);
    const Cover over_h = h.cover(row_number), over_w = w_axis.cover(w + c);
    A all = 0;
#pragma unroll 1
    for (int p = over_h.first; p <= over_h.last; ++p)
#pragma unroll 1
      for (int i = over_w.first; i <= over_w.last; ++i) {
        const Scaled found = scaled_norm<kH, kW>(p * h.stride - h.before, i * w_axis.stride - w_axis.before - w, v);
        const A g = N::widened(grad[static_cast<long long>(p) * (w_axis.outputs * column) + (i - q) * column + v]);
        const A norm = found.scale * found.norm;  // beyond the range of numbers, it is infinite to its elements too
        all +=
            found.norm == A(0) ? A(0) : g * (norm - norm == A(0) ? element / found.scale / found.norm : element / norm);
      }
    return all;
  }

  // The maximum of each column over the rows of a window.
  static __device__ __forceinline__ Row down(const Rows& rows) {
    Row all = rows[0];
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) {
#pragma unroll
      for (int i = 0; i < kBody; ++i) all.body[i].enlarge(rows[r].body[i]);
#pragma unroll
      for (int i = 0; i < kHalo; ++i) all.halo[i] = larger(all.halo[i], rows[r].halo[i]);
    }
    return all;
  }

  // The maximum of each window, given those of its columns.
  static __device__ __forceinline__ Vec<T, kResults> maxima(const Row& columns) {
    Vec<T, kResults> best;
#pragma unroll
    for (int s = 0; s < kWindowW; ++s) {
      Vec<T, kResults> next;
#pragma unroll
      for (int o = 0; o < kResults; ++o) next.at[o] = columns.tap(o, s);
      best = s == 0 ? next : larger(best, next);
    }
    return best;
  }

  // The taps at which the maxima stand, as tap_code has them: the first of equal ones, the last NaN. `h` is the row of
  // tap 0, q the window of result 0. Of all taps but a few: first of each column the row, which windows share, and then
  // the least code of the columns with the maximum.
  static __device__ __forceinline__ void places(const Rows& rows, const Row& columns, const Vec<T, kResults>& best,
                                                int h, int q, int (&taps)[kResults]) {
    if (by_pairs(rows, columns, best, h, q, taps)) return;
    int own_rows[kCells];
    if constexpr (kByColumns) {
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        own_rows[i] = tap_code(kWindowH - 1, 0);
#pragma unroll
        for (int r = kWindowH - 2; r >= 0; --r)
          own_rows[i] = rows[r].cell(i) == columns.cell(i) ? tap_code(r, 0) : own_rows[i];
      }
    }
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      taps[o] = place(rows, columns, own_rows, o, N::widened(best.at[o]), first_inside(h, q, o));
    }
  }

 private:
  static constexpr bool kByColumns = !kLast && sizeof(T) > 2 && kTaps > 9;

  // One of them; `first` is the first tap inside of x.
  static __device__ __forceinline__ int place(const Rows& rows, const Row& columns, const int (&own_rows)[kCells],
                                              int o, A best, int first) {
    int at = first;
    if constexpr (kByColumns) {
      at = tap_code(kWindowH, 0);
#pragma unroll
      for (int s = 0; s < kWindowW; ++s)
        at = min(at, columns.tap(o, s) == best ? own_rows[cell_of(o, s)] + s : tap_code(kWindowH, 0));
    } else {
#pragma unroll
      for (int i = kTaps - 1; i >= 0; --i) at = tap(rows, o, i) == best ? code_of(i) : at;
    }
    if (best - best == A(0) && best != nothing()) return at;
    // What is outside equals this maximum, or it is an infinity or a NaN.
    if (best == nothing()) return first;
    if constexpr (kByColumns) at = at == tap_code(kWindowH, 0) ? first : at;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const A x = tap(rows, o, i);
      at = x != x ? code_of(i) : at;
    }
    return at;
  }
  // The first tap of window o that is inside of x.
  static __device__ __forceinline__ int first_inside(int h, int q, int o) {
    return tap_code(max(-h, 0), max(kBefore - (kLast ? q : q + o) * kStrideW, 0));
  }
  static __device__ constexpr int code_of(int tap) { return tap_code(tap / kWindowW, tap % kWindowW); }

  // Halves by twos; whether that could be done.
  template <typename U>
  static __device__ __forceinline__ bool by_pairs(const Rows& rows, const Row& columns, const Vec<U, kResults>& best,
                                                  int h, int q, int (&taps)[kResults]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (sizeof(U) == 2 && !Number<U>::kInteger && kResults % 2 == 0 && !C::kMagnitude) {
      const Pairs pairs(rows, columns);
      unsigned both[kResults / 2], special = 0;
#pragma unroll
      for (int o = 0; o < kResults; o += 2) {
        const unsigned wanted = pair_of(best.at[o], best.at[o + 1]);
        both[o / 2] = pairs.places(rows, o, wanted);
        special = not_finite(wanted, special, U{});
      }
#pragma unroll
      for (int o = 0; o < kResults && (special & 0x7fff7fffu) != 0; o += 2) {
        const unsigned first = first_inside(h, q, o) | first_inside(h, q, o + 1) << 16;
        both[o / 2] = Pairs::unusual(rows, o, pair_of(best.at[o], best.at[o + 1]), both[o / 2], first);
      }
#pragma unroll
      for (int o = 0; o < kResults; ++o) taps[o] = both[o / 2] >> o % 2 * 16 & 0xffff;
      return true;
    }
#endif
    return false;
  }
#if __CUDA_ARCH__ >= 900
  static __device__ constexpr unsigned twice(int code) { return static_cast<unsigned>(code) * 0x10001u; }

  // What is known of the columns, by twos: their maxima, and where they stand. In channels-last memory no two windows
  // share a column.
  struct Pairs {
    static constexpr int kPairs = kLast ? 1 : (kCells + 1) / 2;
    unsigned values[kPairs], own_rows[kPairs];

    static __device__ __forceinline__ unsigned cells(const Row& row, int i) {
      return pair_of(row.cell(2 * i), row.cell(2 * i + 1 < kCells ? 2 * i + 1 : 2 * i));
    }
    __device__ __forceinline__ Pairs(const Rows& rows, const Row& columns) {
#pragma unroll
      for (int i = 0; i < kPairs && !kLast; ++i) {
        values[i] = cells(columns, i);
        own_rows[i] = twice(tap_code(kWindowH - 1, 0));
#pragma unroll
        for (int r = kWindowH - 2; r >= 0; --r) {
          const unsigned equal = equal_pair(cells(rows[r], i), values[i], T{});
          own_rows[i] = (equal & twice(tap_code(r, 0))) | (~equal & own_rows[i]);
        }
      }
    }
    // The codes of windows o and o + 1, whose maxima are `wanted`.
    __device__ __forceinline__ unsigned places(const Rows& rows, int o, unsigned wanted) const {
      unsigned both = kLast ? 0 : ~0u;
#pragma unroll
      for (int i = kTaps - 1; i >= 0 && kLast; --i) {
        const unsigned equal = equal_pair(taps_of(rows, o, i), wanted, T{});
        both = (equal & twice(code_of(i))) | (~equal & both);
      }
#pragma unroll
      for (int s = 0; s < kWindowW && !kLast; ++s) {
        const int low = cell_of(o, s), high = cell_of(o + 1, s);
        const unsigned equal = equal_pair(halves_of(values, low, high), wanted, T{});
        both = min_u16x2(both, halves_of(own_rows, low, high) | twice(s) | ~equal);
      }
      return both;
    }
    static __device__ __forceinline__ unsigned taps_of(const Rows& rows, int o, int i) {
      return pair_of(rows[i / kWindowW].tap(o, i % kWindowW), rows[i / kWindowW].tap(o + 1, i % kWindowW));
    }
    // The same where a maximum may be no number, or equal to what is outside of x; `first` are the first taps inside.
    static __device__ __forceinline__ unsigned unusual(const Rows& rows, int o, unsigned wanted, unsigned both,
                                                       unsigned first) {
      unsigned last = 0;
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        const unsigned x = taps_of(rows, o, i), number = equal_pair(x, x, T{});
        last = (~number & twice(code_of(i))) | (number & last);
      }
      const unsigned number = equal_pair(wanted, wanted, T{}),
                     lowest = equal_pair(wanted, twice(N::narrowed(nothing()).bits), T{});
      return (~number & last) | (lowest & first) | (number & ~lowest & both);
    }
  };
#endif
};

// How threads share the work: vectors of channels, threads along W and along H.
struct Partition {
  Divider inner, groups, strips;
};

// Which plane, rows, windows and channels a thread has.
template <typename C>
struct Share {
  long long plane;
  int strip, group, channel,
      column;  // the last two in elements: where its channels begin, and from one column to the next

  __device__ __forceinline__ Share(long long thread, const Partition& among) {
    const Split vector = C::kLast ? among.inner(thread) : Split{thread, 0}, along = among.groups(vector.quotient),
                down = among.strips(along.quotient);
    plane = down.quotient;
    strip = down.rest;
    group = along.rest;
    channel = C::kLast ? vector.rest * C::kWide : 0;
    column = C::kLast ? among.inner.divisor * C::kWide : 1;
  }
};

}  // namespace dnnarray
