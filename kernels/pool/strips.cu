// Pooling with windows of up to 5 x 5: y = the maximum (with its place), mean or Euclidean norm of the elements of x in each window.
//
// Layout:  channels-first: a thread owns kGroup neighbouring windows along W, and loads vectors of kWide elements along W beside a few single
//          elements to the left and right of them. Channels-last: it owns one window of kWide neighbouring channels. It walks down kSteps
//          rows of windows; the rows of x that windows share stay in its registers.
// Needs:   pointers and W (or the channels) aligned to kWide elements, y to kPiece; dilation 1, no window outside of x; planes below 2^31.
// Bound:   memory: x read about once (neighbouring strips meet in the caches), y written once.

#include "dnnarray/strip.cuh"

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
  static constexpr int kGroup = 4;
  static constexpr int kPiece = 4;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_strips_default
#endif

using namespace dnnarray;
using R = Config::Result;
constexpr int kMax = 0, kIndices = 1, kTap = 2, kMean = 3, kNorm = 4, kReduction = Config::kReduction;  // as in windows.cu
using S = Strip<Config, kReduction <= kTap>;
using A = S::A;
constexpr bool kLast = Config::kLast;
constexpr int kResults = S::kResults, kPiece = Config::kPiece, kSteps = Config::kSteps, kExponent = Config::kExponent;
constexpr int kWindowH = S::kWindowH, kWindowW = S::kWindowW, kStrideH = Config::kStrideH, kStrideW = S::kStrideW;
constexpr int kAcross = kLast ? 1 : kResults;  // windows beside each other
constexpr int kKept = kWindowH > kStrideH ? kWindowH - kStrideH : 0;  // rows that a window shares with the next

// Where one block must do, because more would cost spills: large windows of float64, and of halves by some compilers.
constexpr bool kHalves = kLast ? __CUDA_ARCH__ >= 1000 && kReduction == kIndices : __CUDA_ARCH__ < 900 && kReduction == kTap;
constexpr bool kAlone = (sizeof(S::T) == 8 || (sizeof(S::T) == 2 && kHalves)) && S::kTaps > 9;

// The sum over each window of term(x).
template <typename Term>
__device__ __forceinline__ void sums(const S::Rows& rows, A (&sum)[kResults], Term term) {
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
  Vec<R, kResults> y;
  Vec<long long, kResults> indices;

  __device__ __forceinline__ void maximum(const S::Rows& rows, int h, int q, int width) {
    const S::Row columns = S::down(rows);
    const Vec<S::T, kResults> best = S::maxima(columns);
    int taps[kResults] = {};
    if constexpr (kReduction != kMax) S::places(rows, columns, best, h, q, taps);
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      put_maximum(y.at[o], best.at[o], taps[o]);
      if constexpr (kReduction == kIndices) {
        const int w = (kLast ? q : q + o) * kStrideW - S::kBefore;
        indices.at[o] = (h + taps[o] / tap_code(1, 0)) * width + w + taps[o] % tap_code(1, 0);
      }
    }
  }

  __device__ __forceinline__ void mean(const S::Rows& rows, A down, const A (&across)[kAcross]) {
    A sum[kResults];
    sums(rows, sum, [](A x) { return x; });
#pragma unroll
    for (int o = 0; o < kResults; ++o) y.at[o] = Number<R>::narrowed(sum[o] * (across[o % kAcross] * down));
  }

  __device__ __forceinline__ void norm(const S::Rows& rows) {
    A sum[kResults];
    sums(rows, sum, [](A x) { return kExponent == 1 ? magnitude(x) : x * x; });
#pragma unroll
    for (int o = 0; o < kResults; ++o) {
      A value = kExponent == 1 ? sum[o] : root(sum[o], A(2));
      if (kExponent == 2 && !(sum[o] > A(1e-30) && sum[o] < A(1e30))) {
        A x[kWindowH * kWindowW];
#pragma unroll
        for (int i = 0; i < kWindowH * kWindowW; ++i) x[i] = S::tap(rows, o, i);
        value = scaled_norm(x);
      }
      y.at[o] = Number<R>::narrowed(value);
    }
  }
};

// kPiece neighbours of a result at a time; along W only those that exist.
template <typename U>
__device__ __forceinline__ void put(U* y, const Vec<U, kResults>& results, int q, int outputs) {
#pragma unroll
  for (int o = 0; o < kResults; o += kPiece) {
    Vec<U, kPiece> piece;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.at[k] = results.at[o + k];
    if (kLast || q + o < outputs) store_wide(y + o, piece);
  }
}

// Arguments that say how threads share the work: Share in strip.cuh. `height` and `width` hold the extents of x and y along their axis,
// `h_padding` and `w_padding` those before and after.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kAlone ? 1 : 0)
    DNNARRAY_ENTRY(const S::T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long inner, long long by_inner, long long groups, long long by_group, long long strips, long long by_strip,
                   long long height, long long h_padding, long long width, long long w_padding, long long padded) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const Share<Config> share(thread, inner, by_inner, groups, by_group, strips, by_strip);
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const int q = share.group * (kLast ? 1 : kResults), first_p = share.strip * kSteps, column = share.column;
  const long long corner = share.plane * axis_h.extent * axis_w.extent + q * kStrideW;
  const S source{gmem_x + corner * column + share.channel, axis_h.extent, axis_w.extent, axis_w.extent * column, column, q * kStrideW};
  long long y = ((share.plane * axis_h.outputs + first_p) * axis_w.outputs + q) * column + share.channel;

  A across[kAcross];  // the shares of a mean along a row
#pragma unroll
  for (int o = 0; o < kAcross; ++o) across[o] = share_of<kWindowW, A>(axis_w.count(axis_w.taps(q + o), padded != 0));
  int h = first_p * kStrideH - axis_h.before;
  S::Rows rows;
#pragma unroll
  for (int r = 0; r < kKept; ++r) rows[r] = source.read(h + r);
#pragma unroll
  for (int p = first_p; p < first_p + kSteps; ++p) {
    if (p >= axis_h.outputs) return;
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) rows[r] = source.read(h + r);
    Results results;
    if constexpr (kReduction <= kTap) results.maximum(rows, h, q, axis_w.extent);
    if constexpr (kReduction == kMean) results.mean(rows, share_of<kWindowH, A>(axis_h.count(axis_h.taps(p), padded != 0)), across);
    if constexpr (kReduction == kNorm) results.norm(rows);
    put(gmem_y + y, results.y, q, axis_w.outputs);
    if constexpr (kReduction == kIndices) put(gmem_indices + y, results.indices, q, axis_w.outputs);
#pragma unroll
    for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStrideH];
    y += static_cast<long long>(axis_w.outputs) * column;
    h += kStrideH;
  }
}
