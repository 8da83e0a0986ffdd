// Pooling with windows of up to 5 x 5: y = the maximum (with its place), mean or Euclidean norm of the elements of x in each window.
//
// Layout:  channels-first: a thread owns kGroup neighbouring windows along W, and loads vectors of kWide elements along W; the few elements to
//          the left and right of them one by one, or as neighbouring lanes have read them (kLends). Channels-last: it owns one window of kWide neighbouring channels. It walks down
//          kSteps rows of windows; the rows of x that windows share stay in its registers, or what is left of each: the sum, or the maximum and where it
//          stands (channels-last; places always). Results that neighbours own side by side, but that no vector can hold, are written by the warp as a whole.
// Needs:   pointers and W (or the channels) aligned to kWide elements, y to kPiece; dilation 1, no window outside of x; planes below 2^31.
// Bound:   memory: x read about once (neighbouring strips meet in the caches), y written once.

#include "dnnarray/overlap.cuh"
#include "dnnarray/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 0;
  static constexpr bool kMagnitude = false;
  static constexpr bool kLends = true;
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

constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap, kHalves = sizeof(S::T) == 2 && !Number<S::T>::kInteger;
constexpr bool kScales = kReduction == kNorm && Config::kExponent == 2 && !kSquaresFit<S::T>;  // whether a norm may need its elements scaled
// Whether one value for each result is kept of a row of x, or the row as it is.
constexpr bool kByRows = kPlaces || (kLast && (kReduction == kMax || kReduction >= kMean));

// The summand of an element.
__device__ __forceinline__ A term(A x) { return kReduction == kMean ? x : kExponent == 1 ? magnitude(x) : x * x; }

// Where neighbours would leave gaps between the single results that they store, a warp writes its results as they lie in memory.
constexpr bool kTogether = !kLast && kPiece == 1 && kResults >= 4;

// The largest element so far, and its code: the first of equal ones. (Of NaN it is some code.)
template <typename T, bool kPair>
struct Best {
  static constexpr int kEach = 1;
  static constexpr bool kAlways = Number<T>::kInteger || Config::kMagnitude;  // whether a maximum that is to be looked at again may be any number
  A value;
  int code;

  Best() = default;
  __device__ __forceinline__ Best(const S::Row& row, int o, int s, int at) : value(S::N::widened(row.tap(o, s))), code(at) {}
  __device__ __forceinline__ void meet(const Best& later) {
    code = value >= later.value ? code : later.code;
    value = larger(value, later.value);
  }
  using Watch = A;  // no number once one was not finite
  __device__ __forceinline__ void watch(Watch& special) const {
    if constexpr (!kAlways) special += value * A(0);
  }
  static __device__ __forceinline__ bool is_special(Watch special) { return kAlways || special != special; }
  __device__ __forceinline__ A at(int) const { return value; }
  __device__ __forceinline__ T element(int) const { return S::N::narrowed(value); }
  __device__ __forceinline__ int where(int) const { return code; }
};
// Of two windows, or channels, of a half type.
#if __CUDA_ARCH__ >= 900
template <typename T>
struct Best<T, true> {
  static constexpr int kEach = 2;
  static constexpr bool kAlways = Config::kMagnitude;
  unsigned value, code;

  Best() = default;
  __device__ __forceinline__ Best(const S::Row& row, int o, int s, int at) : value(pair_of(row.tap(o, s), row.tap(o + 1, s))), code(at * 0x10001u) {}
  __device__ __forceinline__ void meet(const Best& later) {
    const unsigned larger = larger_pair(value, later.value, T{}), stays = equal_pair(larger, value, T{});
    code = (stays & code) | (~stays & later.code);
    value = larger;
  }
  using Watch = unsigned;
  __device__ __forceinline__ void watch(Watch& special) const {
    if constexpr (!kAlways) special = not_finite(value, special, T{});
  }
  static __device__ __forceinline__ bool is_special(Watch special) { return kAlways || (special & 0x7fff7fffu) != 0; }
  __device__ __forceinline__ T element(int k) const { return {static_cast<unsigned short>(value >> 16 * k)}; }
  __device__ __forceinline__ A at(int k) const { return widen(element(k)); }
  __device__ __forceinline__ int where(int k) const { return code >> 16 * k & 0xffff; }
};
constexpr bool kPair = kPlaces && kHalves && kResults % 2 == 0;
#else
constexpr bool kPair = false;
#endif
using B = Best<S::T, kPair>;

// Blocks of a multiprocessor that the compiler is asked for: more hide more of the memory's latency, until they cost spills.
__device__ constexpr int blocks_asked() {
  constexpr bool kLarge = S::kTaps > 9, kNew = __CUDA_ARCH__ >= 900, kApart = kStrideH > 1;
  if (kScales) return 32 / static_cast<int>(sizeof(A));
  if (sizeof(S::T) == 8) return kLarge ? 1 : kPlaces ? 4 : 0;
  if (kReduction == kMax) return kHalves && kLarge && !kLast && __CUDA_ARCH__ < 1000 ? 8 : 0;
  if (!kPlaces) return 0;
  if (kPair) return !kLarge ? 7 : kLast ? (kApart ? 8 : 6) : kTogether ? 6 : 10;
  if (sizeof(S::T) < 4) return kLarge ? 4 : 0;
  if (kLast) return kLarge && !kApart ? 4 : 0;
  return !kLarge ? 6 : kTogether ? 4 : kNew ? 8 : 6;
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
        all = B(row, o, 0, tap_code(number, 0));
#pragma unroll
        for (int s = 1; s < kWindowW; ++s) all.meet(B(row, o, s, tap_code(number, s)));
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
  __device__ __forceinline__ void maximum(const Line (&lines)[kWindowH], const S& source, int h, int number, int count) {
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
        indices.at[o] = first + (kLast ? 0 : o * kStrideW) + code / tap_code(1, 0) * source.width + code % tap_code(1, 0);
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

// The same by a warp together (kTogether).
struct Place {
  int at, count;
};
template <typename U>
__device__ __forceinline__ void put_together(U* y, long long at, const Vec<U, kResults>& results, int count) {
  __shared__ __align__(16) U smem[Config::kThreads * kResults];
  __shared__ Place smem_places[Config::kThreads];
  const int lane = threadIdx.x % kWarp, first = threadIdx.x - lane;
  const long long base = __shfl_sync(kAllLanes, at, 0);
  store_wide(smem + threadIdx.x * kResults, results);
  smem_places[threadIdx.x] = {static_cast<int>(at - base), count};
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kResults; ++j) {
    const int i = j * kWarp + lane, own = i % kResults;
    const Place owner = smem_places[first + i / kResults];
    if (own < owner.count) y[base + owner.at + own] = smem[first * kResults + i];
  }
  __syncwarp();
}

// What a thread does: `count` results of each of the rows [p, end) of y, which lie `row` elements apart from y on; q is the first of a row.
struct Task {
  S source;
  long long y;
  int row, q, count, p, end;

  // Once more, norms whose squares have left the range: those whose bits are set.
  __device__ __forceinline__ void scale(R* gmem_y, int before, unsigned odd) const {
    for (; odd != 0; odd &= odd - 1) {
      const int bit = __ffs(odd) - 1, step = bit / kResults, o = bit % kResults;
      const int left = (kLast ? 0 : o * kStrideW) - S::kBefore;
      const S::Scaled found = source.scaled_norm<kWindowH, kWindowW>((p + step) * kStrideH - before, left, kLast ? o : 0);
      gmem_y[y + static_cast<long long>(step) * row + o] = Number<R>::narrowed(found.scale * found.norm);
    }
  }
  // Once more, where maxima stand: where nothing is larger than what is outside of x, the first element that is inside; of NaN the last.
  __device__ __forceinline__ void place(R* gmem_y, long long* gmem_indices, int before, unsigned odd) const {
    for (; odd != 0; odd &= odd - 1) {
      const int bit = __ffs(odd) - 1, step = bit / kResults, o = bit % kResults, top = (p + step) * kStrideH - before;
      const int left = (kLast ? 0 : o * kStrideW) - S::kBefore;
      int code = tap_code(max(-top, 0), max(-left - source.w, 0));
#pragma unroll 1
      for (int i = 0; i < S::kTaps; ++i) {
        const int h = top + i / kWindowW, c = left + i % kWindowW;
        if (!source.inside(h, c)) continue;
        const A x = S::N::widened(source.x[static_cast<long long>(h) * source.row + c * source.column + (kLast ? o : 0)]);
        if (x != x) code = tap_code(i / kWindowW, i % kWindowW);
      }
      const long long at = y + static_cast<long long>(step) * row + o;
      if constexpr (kReduction == kTap) gmem_y[at] = Number<R>::narrowed(code);
      if constexpr (kReduction == kIndices) gmem_indices[at] = (top + code / tap_code(1, 0)) * source.width + source.w + left + code % tap_code(1, 0);
    }
  }
};
constexpr bool kWarps = S::kLends || kTogether;              // the lanes of a warp go along to the end
constexpr bool kAhead = kSteps == 1 && kReduction != kNorm;  // whether all is read before anything is written

// Arguments that say how threads share the work: Share in strip.cuh. `height` and `width` hold the extents of x and y along their axis,
// `h_padding` and `w_padding` those before and after.
extern "C" __global__ void __launch_bounds__(Config::kThreads, blocks_asked())
    DNNARRAY_ENTRY(const S::T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long inner, long long by_inner, long long groups, long long by_group, long long strips, long long by_strip,
                   long long height, long long h_padding, long long width, long long w_padding, long long padded) {
  begin_ahead();
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const auto task_of = [&](unsigned tid) {
    const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + tid;
    const Share<Config> share(!kWarps || thread < total ? thread : total - 1, inner, by_inner, groups, by_group, strips, by_strip);
    const int q = share.group * (kLast ? 1 : kResults), lane = tid % kWarp, column = share.column;
    const int p = share.strip * kSteps, end = thread < total ? min(p + kSteps, axis_h.outputs) : p;
    const long long x = (share.plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + share.channel;
    const long long y = ((share.plane * axis_h.outputs + p) * axis_w.outputs + q) * column + share.channel;
    const S source{gmem_x + x, axis_h.extent, axis_w.extent, axis_w.extent * column, column, q * kStrideW,
                   lane == 0 || share.group == 0, lane == kWarp - 1 || share.group == high(groups) - 1};
    return Task{source, y, axis_w.outputs * column, q, kLast ? kResults : min(axis_w.outputs - q, kResults), p, end};
  };
  Task task = task_of(threadIdx.x);
  if (!kWarps && task.p == task.end) return;
  if constexpr (kAhead) take_after_previous_kernel(task.source.x);
  const S& source = task.source;
  const int q = task.q;
  long long y = task.y;

  A across[kAcross];  // the shares of a mean along a row
#pragma unroll
  for (int o = 0; o < kAcross; ++o) across[o] = share_of<kWindowW, A>(axis_w.count(axis_w.taps(q + o), padded != 0));
  int h = task.p * kStrideH - axis_h.before;
  unsigned odd = 0;
  Seen<kByRows>::type rows;
#pragma unroll
  for (int r = 0; r < kKept; ++r) rows[r] = Seen<kByRows>::entry(source.read(h + r), r);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int p = task.p + step, count = p < task.end ? task.count : 0;
    if (kWarps ? !__any_sync(kAllLanes, count > 0) : count == 0) break;
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) rows[r] = Seen<kByRows>::entry(source.read(h + r), step * kStrideH + r);
    Results results;
    if constexpr (kReduction <= kTap) results.maximum(rows, source, h, step * kStrideH, count);
    if constexpr (kReduction == kMean) results.mean(rows, share_of<kWindowH, A>(axis_h.count(axis_h.taps(p), padded != 0)), across);
    if constexpr (kReduction == kNorm) results.norm(rows, count);
    odd |= results.odd << step * kResults;
    if constexpr (kTogether) {
      put_together(gmem_y, y, results.y, count);
      if constexpr (kReduction == kIndices) put_together(gmem_indices, y, results.indices, count);
    } else {
      put(gmem_y + y, results.y, count);
      if constexpr (kReduction == kIndices) put(gmem_indices + y, results.indices, count);
    }
#pragma unroll
    for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStrideH];
    y += task.row;
    h += kStrideH;
  }
  if (kScales && odd != 0) task_of(late_thread()).scale(gmem_y, axis_h.before, odd);
  if (kPlaces && odd != 0) task_of(late_thread()).place(gmem_y, gmem_indices, axis_h.before, odd);
}
