// Pooling with windows of up to 5 x 5: y = the maximum (with its place), mean or Euclidean norm of the elements of x in
// each window.
//
// Layout:  channels-first: a thread owns kGroup neighbouring windows along W, and loads vectors of kWide elements along
//          W; the few elements to the left and right of them one by one, or as neighbouring lanes have read them
//          (kLends). Channels-last: it owns one window of kWide neighbouring channels. It walks down kSteps rows of
//          windows; the rows of x that windows share stay in its registers, or what is left of each: the sum, or the
//          maximum and where it stands (channels-last; places always). Results that neighbours own side by side, but
//          that no vector can hold, are written by the warp as a whole.
// Needs:   pointers and W (or the channels) aligned to kWide elements, y to kPiece; dilation 1, no window outside of x;
//          planes below 2^31.
// Bound:   memory: x read about once (neighbouring strips meet in the caches), y written once.

#include "dnnarray/core/overlap.cuh"
#include "pool/left_pair.cuh"
#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
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
  using Result = float;
  static constexpr int kReduction = 0;
  static constexpr bool kMagnitude = false;
  static constexpr int kExponent = 2;
  static constexpr bool kLends = true;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
  int padded;
};
#define DNNARRAY_ENTRY pool_small_windows_default
#endif

#include "pool/strips.cuh"

using namespace dnnarray;

// Where neighbours would leave gaps between the single results that they store, a warp writes its results as they lie
// in memory.
constexpr bool kTogether = !kLast && kPiece == 1 && kResults >= 4;

// Blocks of a multiprocessor that the compiler is asked for: more hide more of the memory's latency, until they cost
// spills.
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

constexpr bool kWarps = S::kLends || kTogether;              // the lanes of a warp go along to the end
constexpr bool kAhead = kSteps == 1 && kReduction != kNorm;  // whether all is read before anything is written

template <typename Source>
__device__ __forceinline__ S::Row read_row(const Source& source, int h) {
  if constexpr (kLeftPair<Source> && !Config::kMagnitude) {
    return read_with_left_pair(source, h);
  } else {
    return source.read(h);
  }
}

// `total` counts threads, and `among` says how they share the work: Share in strip.cuh.
extern "C" __global__ void __launch_bounds__(Config::kThreads, blocks_asked())
    DNNARRAY_ENTRY(const S::T* __restrict__ x, R* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  begin_ahead();
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const auto task_of = [&](unsigned tid) {
    const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + tid;
    const Share<Config> share(!kWarps || thread < a.total ? thread : a.total - 1, a.among);
    const int q = share.group * (kLast ? 1 : kResults), lane = tid % kWarp, column = share.column;
    const int p = share.strip * kSteps, end = thread < a.total ? min(p + kSteps, axis_h.outputs) : p;
    const long long from = (share.plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + share.channel;
    const long long to = ((share.plane * axis_h.outputs + p) * axis_w.outputs + q) * column + share.channel;
    const S source{x + from,
                   axis_h.extent,
                   axis_w.extent,
                   axis_w.extent * column,
                   column,
                   q * kStrideW,
                   lane == 0 || share.group == 0,
                   lane == kWarp - 1 || share.group == a.among.groups.divisor - 1};
    return Task{source, to, axis_w.outputs * column, q, kLast ? kResults : min(axis_w.outputs - q, kResults), p, end};
  };
  Task task = task_of(threadIdx.x);
  if (!kWarps && task.p == task.end) return;
  if constexpr (kAhead) take_after_previous_kernel(task.source.x);
  const S& source = task.source;
  const int q = task.q;
  long long at = task.y;

  A across[kAcross];  // the shares of a mean along a row
#pragma unroll
  for (int o = 0; o < kAcross; ++o) across[o] = share_of<kWindowW, A>(axis_w.count(axis_w.taps(q + o), a.padded != 0));
  int h = task.p * kStrideH - axis_h.before;
  unsigned odd = 0;
  Seen<kByRows>::type rows;
#pragma unroll
  for (int r = 0; r < kKept; ++r) rows[r] = Seen<kByRows>::entry(read_row(source, h + r), r);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int p = task.p + step, count = p < task.end ? task.count : 0;
    if (kWarps ? !__any_sync(kAllLanes, count > 0) : count == 0) break;
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) rows[r] = Seen<kByRows>::entry(read_row(source, h + r), step * kStrideH + r);
    Results results;
    if constexpr (kReduction <= kTap) results.maximum(rows, source, h, step * kStrideH, count);
    if constexpr (kReduction == kMean)
      results.mean(rows, share_of<kWindowH, A>(axis_h.count(axis_h.taps(p), a.padded != 0)), across);
    if constexpr (kReduction == kNorm) results.norm(rows, count);
    odd |= results.odd << step * kResults;
    if constexpr (kTogether) {
      put_together(y, at, results.y, count);
      if constexpr (kReduction == kIndices) put_together(indices, at, results.indices, count);
    } else {
      put(y + at, results.y, count);
      if constexpr (kReduction == kIndices) put(indices + at, results.indices, count);
    }
#pragma unroll
    for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStrideH];
    at += task.row;
    h += kStrideH;
  }
  if (kScales && odd != 0) task_of(late_thread()).scale(y, axis_h.before, odd);
  if (kPlaces && odd != 0) task_of(late_thread()).place(y, indices, axis_h.before, odd);
}
