// Pooling with windows of up to 5 x 5: y = the maximum (with its place), mean or Euclidean norm of the elements of x in each window.
//
// Layout:  channels-first: a thread owns kGroup neighbouring windows along W, and loads vectors of kWide elements along W; the few elements to
//          the left and right of them one by one, or as neighbouring lanes have read them (kLends). Channels-last: it owns one window of kWide neighbouring channels. It walks down
//          kSteps rows of windows; the rows of x that windows share stay in its registers, or what is left of each (channels-last, but for
//          places). Results that neighbours own side by side, but that no vector can hold, are written by the warp as a whole.
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

// Where one block must do, because more would cost spills: large windows of float64, and of halves by some compilers.
constexpr bool kHalves = kLast ? __CUDA_ARCH__ >= 1000 && kReduction == kIndices : __CUDA_ARCH__ < 900 && kReduction == kTap;
constexpr bool kAlone = (sizeof(S::T) == 8 || (sizeof(S::T) == 2 && kHalves)) && S::kTaps > 9;

// Whether one value for each result is kept of a row of x, or the row as it is.
constexpr bool kByRows = kLast && (kReduction == kMax || kReduction >= kMean);

// The summand of an element; and whether a norm may need its elements scaled.
__device__ __forceinline__ A term(A x) { return kReduction == kMean ? x : kExponent == 1 ? magnitude(x) : x * x; }
constexpr bool kScales = kReduction == kNorm && kExponent == 2 && !kSquaresFit<S::T>;

// The maximum or the sum of what stands beside each other in a row, for each channel.
struct Line {
  S::Body best;
  A sum[kResults];

  __device__ __forceinline__ Line() {}
  __device__ __forceinline__ explicit Line(const S::Row& row) {
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
  static __device__ __forceinline__ S::Row entry(const S::Row& row) { return row; }
};
template <>
struct Seen<true> {
  using type = Line[kWindowH];
  static __device__ __forceinline__ Line entry(const S::Row& row) { return Line(row); }
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
  unsigned odd = 0;  // of which sums of squares have left the range, as bits

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
  __device__ __forceinline__ void maximum(const Line (&lines)[kWindowH], int h, int q, int width) {
    S::Body best = lines[0].best;
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) best.enlarge(lines[r].best);
#pragma unroll
    for (int o = 0; o < kResults; ++o) put_maximum(y.at[o], best.at(o), 0);
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

// The same where neighbours would leave gaps between the single results that they store: a warp writes its results as they lie in memory.
constexpr bool kTogether = !kLast && kPiece == 1 && kResults >= 4;
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
};
constexpr bool kWarps = S::kLends || kTogether;              // the lanes of a warp go along to the end
constexpr bool kAhead = kSteps == 1 && kReduction != kNorm;  // whether all is read before anything is written

// Arguments that say how threads share the work: Share in strip.cuh. `height` and `width` hold the extents of x and y along their axis,
// `h_padding` and `w_padding` those before and after.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kAlone ? 1 : kScales ? 32 / static_cast<int>(sizeof(A)) : 0)
    DNNARRAY_ENTRY(const S::T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long inner, long long by_inner, long long groups, long long by_group, long long strips, long long by_strip,
                   long long height, long long h_padding, long long width, long long w_padding, long long padded) {
  begin_ahead();
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const auto task_of = [&](unsigned tid) {
    const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + tid;
    const Share<Config> share(thread < total ? thread : total - 1, inner, by_inner, groups, by_group, strips, by_strip);
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
  for (int r = 0; r < kKept; ++r) rows[r] = Seen<kByRows>::entry(source.read(h + r));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int p = task.p + step, count = p < task.end ? task.count : 0;
    if (kWarps ? !__any_sync(kAllLanes, count > 0) : count == 0) break;
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) rows[r] = Seen<kByRows>::entry(source.read(h + r));
    Results results;
    if constexpr (kReduction <= kTap) results.maximum(rows, h, q, axis_w.extent);
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
}
