// What a thread sees of x when it walks down rows of small windows, for pooling and its gradients: rows in registers, and maxima over them.
#pragma once

#include "dnnarray/window.cuh"

namespace dnnarray {

// A vector in registers; halves lie in words, so that what may or may not have been loaded is moved by words.
template <typename T, int N, bool kWords = sizeof(T) == 2 && !Number<T>::kInteger && N % 2 == 0>
struct Packed {
  Vec<T, N> v;
  __device__ __forceinline__ T at(int i) const { return v.at[i]; }
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

// C is the Config of a kernel. Channels-last (kLast): a thread has one window of kWide neighbouring channels. Channels-first: kGroup windows
// beside each other, and reads vectors of kWide elements along W (kGroup x kStrideW is a multiple of kWide) with single elements on both
// sides. kLowest: what is outside of x is less than every number, else 0. kMagnitude: elements are taken without their sign.
template <typename C, bool kLowest>
struct Strip {
  using T = typename C::Element;
  using N = Number<T>;
  using A = typename N::type;
  using V = Vec<T, C::kWide>;
  static constexpr bool kLast = C::kLast;
  static constexpr int kWide = C::kWide, kBefore = C::kBefore, kWindowH = C::kWindowH, kWindowW = C::kWindowW, kStrideW = C::kStrideW;
  static constexpr int kTaps = kWindowH * kWindowW, kResults = kLast ? kWide : C::kGroup;

  // The columns that a thread looks at begin kBefore to the left of its own ones, which are kSpan.
  static constexpr int kSpan = (kLast ? 1 : kResults) * kStrideW, kColumns = kSpan - kStrideW + kWindowW;
  static constexpr int kLeft = kLast ? 0 : kBefore, kRight = kLast || kColumns - kBefore < kSpan ? 0 : kColumns - kBefore - kSpan;
  static constexpr int kBody = kLast ? kWindowW : (kColumns - kLeft - kRight + kWide - 1) / kWide, kHalo = kLeft + kRight;
  static constexpr int kCells = kBody * kWide + kHalo;

  // Which cell of a row is tap s of the window of result o.
  static __device__ constexpr int cell_of(int o, int s) {
    const int column = o * kStrideW + s - kBefore, beyond = kBody * kWide + kLeft + column;
    return kLast ? s * kWide + o : column < 0 ? beyond : column < kSpan ? column : beyond - kSpan;
  }
  struct Row {
    Packed<T, kWide> body[kBody];
    T halo[kHalo > 0 ? kHalo : 1];
    __device__ __forceinline__ T cell(int i) const { return i < kBody * kWide ? body[i / kWide].at(i % kWide) : halo[i - kBody * kWide]; }
    __device__ __forceinline__ T tap(int o, int s) const { return cell(cell_of(o, s)); }
  };
  using Rows = Row[kWindowH];

  static __device__ __forceinline__ A nothing() { return kLowest && !C::kMagnitude ? N::lowest() : A(0); }
  static __device__ __forceinline__ A tap(const Rows& rows, int o, int i) { return N::widened(rows[i / kWindowW].tap(o, i % kWindowW)); }

  const T* x;  // the first own column, in row 0
  int height, width, row, column, w;

  __device__ __forceinline__ bool inside(int h, int c) const {
    return static_cast<unsigned>(h) < static_cast<unsigned>(height) && static_cast<unsigned>(w + c) < static_cast<unsigned>(width);
  }
  __device__ __forceinline__ Row read(int h) const {
    const T* from = x + static_cast<long long>(h) * row;
    Row r;
#pragma unroll
    for (int b = 0; b < kBody; ++b) {
      const int c = kLast ? b - kBefore : b * kWide;
      r.body[b].fill(N::narrowed(nothing()));
      if (inside(h, c)) r.body[b].read(from + static_cast<long long>(c) * column);
      if constexpr (C::kMagnitude) r.body[b].unsign();
    }
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
      const int c = i < kLeft ? i - kLeft : kSpan + i - kLeft;
      r.halo[i] = inside(h, c) ? from[c] : N::narrowed(nothing());
      if constexpr (C::kMagnitude) r.halo[i] = N::narrowed(magnitude(N::widened(r.halo[i])));
    }
    return r;
  }

  // The maximum of each window: first down the columns, then along the row.
  static __device__ __forceinline__ Vec<T, kResults> maxima(const Rows& rows) {
    Row all = rows[0];
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) {
#pragma unroll
      for (int i = 0; i < kBody; ++i) all.body[i].enlarge(rows[r].body[i]);
#pragma unroll
      for (int i = 0; i < kHalo; ++i) all.halo[i] = larger(all.halo[i], rows[r].halo[i]);
    }
    Vec<T, kResults> best;
#pragma unroll
    for (int s = 0; s < kWindowW; ++s) {
      Vec<T, kResults> next;
#pragma unroll
      for (int o = 0; o < kResults; ++o) next.at[o] = all.tap(o, s);
      best = s == 0 ? next : larger(best, next);
    }
    return best;
  }

  // The taps at which the maxima stand: the first of equal ones, the last NaN. `h` is the row of tap 0, q the window of result 0.
  static __device__ __forceinline__ void places(const Rows& rows, const Vec<T, kResults>& best, int h, int q, int (&taps)[kResults]) {
    if (by_pairs(rows, best, taps)) return;
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      const int inside = max(-h, 0) * kWindowW + max(kBefore - (kLast ? q : q + o) * kStrideW, 0);
      taps[o] = place(rows, o, N::widened(best.at[o]), inside);
    }
  }

 private:
  // One of them; `first` is the first tap inside of x.
  static __device__ __forceinline__ int place(const Rows& rows, int o, A best, int first) {
    int at = first;
#pragma unroll
    for (int i = kTaps - 1; i >= 0; --i) at = tap(rows, o, i) == best ? i : at;
    if (best - best == A(0) && best != nothing()) return at;
    // What is outside equals this maximum, or it is an infinity or a NaN.
    if (best == nothing()) return first;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const A x = tap(rows, o, i);
      at = x != x ? i : at;
    }
    return at;
  }

  // Halves by twos; false where one of them needs the long way.
  template <typename U>
  static __device__ __forceinline__ bool by_pairs(const Rows& rows, const Vec<U, kResults>& best, int (&taps)[kResults]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (sizeof(U) == 2 && !Number<U>::kInteger && kResults % 2 == 0 && !C::kMagnitude) {
      unsigned special = 0;
#pragma unroll
      for (int o = 0; o < kResults; o += 2) {
        const unsigned wanted = pair_of(best.at[o], best.at[o + 1]);
        unsigned both = 0;
#pragma unroll
        for (int i = kTaps - 1; i >= 0; --i) {
          const Row& row = rows[i / kWindowW];
          const unsigned equal = equal_pair(pair_of(row.tap(o, i % kWindowW), row.tap(o + 1, i % kWindowW)), wanted, U{});
          both = (equal & static_cast<unsigned>(i * 0x10001)) | (~equal & both);
        }
        special |= special_pair(wanted, U{});
        taps[o] = both & 0xffff;
        taps[o + 1] = both >> 16;
      }
      return special == 0;
    }
#endif
    return false;
  }
};

// Which plane, rows, windows and channels a thread has. `inner` counts the vectors of channels, `groups` and `strips` the threads along W
// and H, each with what a Divider takes beside it.
template <typename C>
struct Share {
  long long plane;
  int strip, group, channel, column;  // the last two in elements: where its channels begin, and from one column to the next

  __device__ __forceinline__ Share(long long thread, long long inner, long long by_inner, long long groups, long long by_group,
                                   long long strips, long long by_strip) {
    const Split vector = C::kLast ? Divider(inner, by_inner)(thread) : Split{thread, 0}, along = Divider(groups, by_group)(vector.quotient);
    const Split down = Divider(strips, by_strip)(along.quotient);
    plane = down.quotient;
    strip = down.rest;
    group = along.rest;
    channel = C::kLast ? vector.rest * C::kWide : 0;
    column = C::kLast ? high(inner) * C::kWide : 1;
  }
};

}  // namespace dnnarray
