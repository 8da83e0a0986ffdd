// Pooling with windows of up to 3 x 3: y = the maximum (with its place), mean or Euclidean norm of the elements of x in each window.
//
// Layout:  channels-first: a thread owns kWide neighbouring windows along W, and loads vectors of kWide elements along W beside a few single
//          elements to the left and right of them. Channels-last: it owns one window of kWide neighbouring channels. It walks down kSteps
//          rows of windows; the rows of x that windows share stay in its registers.
// Needs:   pointers and W (or the channels) aligned to kWide elements, y to kPiece; dilation 1, no window outside of x; planes below 2^31.
// Bound:   memory: x read about once (neighbouring strips meet in the caches), y written once.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 0;
  static constexpr bool kMagnitude = false;
  static constexpr int kExponent = 2;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 4;
  static constexpr int kPiece = 4;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_strips_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using R = Config::Result;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kPiece = Config::kPiece, kSteps = Config::kSteps, kBefore = Config::kBefore, kExponent = Config::kExponent;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW, kStrideW = Config::kStrideW;
constexpr int kMax = 0, kIndices = 1, kTap = 2, kMean = 3, kNorm = 4, kReduction = Config::kReduction;  // as in windows.cu
constexpr bool kMaximum = kReduction == kMax || kReduction == kIndices || kReduction == kTap;
using V = Vec<T, kWide>;

// The columns that a thread looks at begin kBefore to the left of its own ones, which are kSpan.
constexpr int kSpan = (kLast ? 1 : kWide) * kStrideW, kColumns = kSpan - kStrideW + kWindowW;
constexpr int kLeft = kLast ? 0 : kBefore, kRight = kLast || kColumns - kBefore < kSpan ? 0 : kColumns - kBefore - kSpan;
constexpr int kBody = kLast ? kWindowW : (kColumns - kLeft - kRight + kWide - 1) / kWide;
constexpr int kHalo = kLeft + kRight, kCells = kBody * kWide + kHalo, kKept = kWindowH > kStrideH ? kWindowH - kStrideH : 0;

// What a thread sees of a row: whole vectors, then single elements; what is outside of x changes nothing.
struct Row {
  V body[kBody];
  T halo[kHalo > 0 ? kHalo : 1];
  __device__ __forceinline__ T cell(int i) const { return i < kBody * kWide ? body[i / kWide].at[i % kWide] : halo[i - kBody * kWide]; }
};

// Which cell is tap s of the window of result o.
__device__ constexpr int cell_of(int o, int s) {
  const int column = o * kStrideW + s - kBefore;
  return kLast ? s * kWide + o : column < 0 ? kBody * kWide + kLeft + column : column < kSpan ? column : kBody * kWide + kLeft + column - kSpan;
}

__device__ __forceinline__ A nothing() { return kMaximum && !Config::kMagnitude ? N::lowest() : A(0); }
__device__ __forceinline__ T read_as(T x) { return Config::kMagnitude ? N::narrowed(magnitude(N::widened(x))) : x; }

__device__ __forceinline__ V read_as(V v) {
#pragma unroll
  for (int j = 0; j < kWide; ++j) v.at[j] = read_as(v.at[j]);
  return v;
}

struct Source {
  const T* x;  // the column 0 of the thread, in row 0
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
#pragma unroll
      for (int j = 0; j < kWide; ++j) r.body[b].at[j] = N::narrowed(nothing());
      if (inside(h, c)) r.body[b] = read_as(load<T, kWide>(from + static_cast<long long>(c) * column));
    }
#pragma unroll
    for (int i = 0; i < kHalo; ++i) {
      const int c = i < kLeft ? i - kLeft : kSpan + i - kLeft;
      r.halo[i] = inside(h, c) ? read_as(from[c]) : N::narrowed(nothing());
    }
    return r;
  }
};

__device__ __forceinline__ Row larger_rows(const Row& a, const Row& b) {
  Row r;
#pragma unroll
  for (int i = 0; i < kBody; ++i) r.body[i] = larger(a.body[i], b.body[i]);
#pragma unroll
  for (int i = 0; i < kHalo; ++i) r.halo[i] = larger(a.halo[i], b.halo[i]);
  return r;
}

// Tap s of the windows of all results.
__device__ __forceinline__ V taps_of(const Row& row, int s) {
  V v;
#pragma unroll
  for (int o = 0; o < kWide; ++o) v.at[o] = row.cell(cell_of(o, s));
  return v;
}

// The maximum of each window.
__device__ __forceinline__ V maxima(const Row (&rows)[kWindowH]) {
  Row all = rows[0];
#pragma unroll
  for (int r = 1; r < kWindowH; ++r) all = larger_rows(all, rows[r]);
  V best = taps_of(all, 0);
#pragma unroll
  for (int s = 1; s < kWindowW; ++s) best = larger(best, taps_of(all, s));
  return best;
}

// The tap of window o at which its maximum stands: the first of equal ones. `first` is the first tap inside of x.
__device__ __forceinline__ int tap_of(const Row (&rows)[kWindowH], int o, A best, int first) {
  int tap = first;
#pragma unroll
  for (int i = kWindowH * kWindowW - 1; i >= 0; --i) tap = N::widened(rows[i / kWindowW].cell(cell_of(o, i % kWindowW))) == best ? i : tap;
  if (best - best == A(0) && best != nothing()) return tap;
  // What is outside equals this maximum, or it is an infinity or a NaN, of which the last one counts.
  if (best == nothing()) return first;
#pragma unroll
  for (int i = 0; i < kWindowH * kWindowW; ++i) {
    const A x = N::widened(rows[i / kWindowW].cell(cell_of(o, i % kWindowW)));
    tap = x != x ? i : tap;
  }
  return tap;
}

// The same for all results, two at once; false where one of them needs the long way.
template <typename U>
__device__ __forceinline__ bool taps_by_pairs(const Row (&rows)[kWindowH], const Vec<U, kWide>& best, int (&taps)[kWide]) {
#if __CUDA_ARCH__ >= 900
  if constexpr (sizeof(U) == 2 && !N::kInteger && kWide % 2 == 0 && !Config::kMagnitude) {
    unsigned special = 0;
#pragma unroll
    for (int o = 0; o < kWide; o += 2) {
      const unsigned wanted = pair_of(best.at[o], best.at[o + 1]);
      unsigned both = 0;
#pragma unroll
      for (int i = kWindowH * kWindowW - 1; i >= 0; --i) {
        const Row& row = rows[i / kWindowW];
        const unsigned x = pair_of(row.cell(cell_of(o, i % kWindowW)), row.cell(cell_of(o + 1, i % kWindowW)));
        const unsigned equal = equal_pair(x, wanted, U{});
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

// The sum over each window of term(x).
template <typename Term>
__device__ __forceinline__ void sums(const Row (&rows)[kWindowH], A (&sum)[kWide], Term term) {
  A all[kCells];
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    all[i] = term(N::widened(rows[0].cell(i)));
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) all[i] += term(N::widened(rows[r].cell(i)));
  }
#pragma unroll
  for (int o = 0; o < kWide; ++o) {
    sum[o] = all[cell_of(o, 0)];
#pragma unroll
    for (int s = 1; s < kWindowW; ++s) sum[o] += all[cell_of(o, s)];
  }
}

// The norm of window o with its elements scaled, for squares that would leave the range.
__device__ __noinline__ A scaled_norm(const A (&x)[kWindowH * kWindowW]) {
  A largest = 0, sum = 0;
  for (A v : x) largest = wins(magnitude(v), largest) ? magnitude(v) : largest;
  const A scale = largest > A(0) && largest - largest == A(0) ? largest : A(1);
  for (A v : x) sum += (v / scale) * (v / scale);
  return scale * root(sum, A(2));
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
  Vec<R, kWide> y;
  Vec<long long, kWide> indices;

  __device__ __forceinline__ void maximum(const Row (&rows)[kWindowH], int h, int q, int width) {
    const V best = maxima(rows);
    int taps[kWide];
    if (kReduction != kMax && !taps_by_pairs(rows, best, taps)) {
#pragma unroll
      for (int o = 0; o < kWide; ++o) {
        taps[o] = tap_of(rows, o, N::widened(best.at[o]), max(-h, 0) * kWindowW + max(kBefore - (kLast ? q : q + o) * kStrideW, 0));
      }
    }
#pragma unroll
    for (int o = 0; o < kWide; ++o) {
      put_maximum(y.at[o], best.at[o], taps[o]);
      if constexpr (kReduction == kIndices) {
        const int w = (kLast ? q : q + o) * kStrideW - kBefore, r = taps[o] / kWindowW;
        indices.at[o] = (h + r) * width + w + taps[o] - r * kWindowW;
      }
    }
  }

  __device__ __forceinline__ void mean(const Row (&rows)[kWindowH], int p, int q, const Axis<false>& h, const Axis<false>& w, bool padded) {
    A sum[kWide];
    sums(rows, sum, [](A x) { return x; });
    const int across = h.count(h.taps(p), padded);
#pragma unroll
    for (int o = 0; o < kWide; ++o) {
      if (!kLast || o == 0) share = inverse(A(across * w.count(w.taps(q + o), padded)));
      y.at[o] = Number<R>::narrowed(sum[o] * share);
    }
  }

  __device__ __forceinline__ void norm(const Row (&rows)[kWindowH]) {
    A sum[kWide];
    sums(rows, sum, [](A x) { return kExponent == 1 ? magnitude(x) : x * x; });
#pragma unroll
    for (int o = 0; o < kWide; ++o) {
      A value = kExponent == 1 ? sum[o] : root(sum[o], A(2));
      if (kExponent == 2 && !(sum[o] > A(1e-30) && sum[o] < A(1e30))) {
        A x[kWindowH * kWindowW];
#pragma unroll
        for (int i = 0; i < kWindowH * kWindowW; ++i) x[i] = N::widened(rows[i / kWindowW].cell(cell_of(o, i % kWindowW)));
        value = scaled_norm(x);
      }
      y.at[o] = Number<R>::narrowed(value);
    }
  }

 private:
  A share;
};

// kPiece neighbours of a result at a time; along W only those that exist.
template <typename U>
__device__ __forceinline__ void put(U* y, const Vec<U, kWide>& results, int q, int outputs) {
#pragma unroll
  for (int o = 0; o < kWide; o += kPiece) {
    Vec<U, kPiece> piece;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.at[k] = results.at[o + k];
    if (kLast || q + o < outputs) store_wide(y + o, piece);
  }
}

// `inner` counts the vectors of channels, `groups` and `strips` the threads along W and H, each with what a Divider takes beside it; `height`
// and `width` hold the extents of x and y along their axis, `h_padding` and `w_padding` those before and after.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long inner, long long by_inner, long long groups, long long by_group, long long strips, long long by_strip,
                   long long height, long long h_padding, long long width, long long w_padding, long long padded) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const Split vector = kLast ? Divider(inner, by_inner)(thread) : Split{thread, 0}, group = Divider(groups, by_group)(vector.quotient);
  const Split strip = Divider(strips, by_strip)(group.quotient);
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const int q = group.rest * (kLast ? 1 : kWide), first_p = strip.rest * kSteps, column = kLast ? high(inner) * kWide : 1;
  const long long plane = strip.quotient, channel = kLast ? vector.rest * kWide : 0;
  const Source source{gmem_x + (plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + channel, axis_h.extent, axis_w.extent,
                      axis_w.extent * column, column, q * kStrideW};
  long long y = ((plane * axis_h.outputs + first_p) * axis_w.outputs + q) * column + channel;

  int h = first_p * kStrideH - axis_h.before;
  Row rows[kWindowH];
#pragma unroll
  for (int r = 0; r < kKept; ++r) rows[r] = source.read(h + r);
#pragma unroll
  for (int p = first_p; p < first_p + kSteps; ++p) {
    if (p >= axis_h.outputs) return;
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) rows[r] = source.read(h + r);
    Results results;
    if constexpr (kMaximum) results.maximum(rows, h, q, axis_w.extent);
    if constexpr (kReduction == kMean) results.mean(rows, p, q, axis_h, axis_w, padded != 0);
    if constexpr (kReduction == kNorm) results.norm(rows);
    put(gmem_y + y, results.y, q, axis_w.outputs);
    if constexpr (kReduction == kIndices) put(gmem_indices + y, results.indices, q, axis_w.outputs);
#pragma unroll
    for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStrideH];
    y += static_cast<long long>(axis_w.outputs) * column;
    h += kStrideH;
  }
}
