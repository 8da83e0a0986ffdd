// The cross entropy of each row of scores, one read of the scores: l = (1 - e) w[t] (lse - z[t]) + e / C sum_c w[c] (lse - z[c]), or
// against probabilities q: l = sum_c ((1 - e) q[c] + e / C) w[c] (lse - z[c]).
//
// Layout:  z (rows, classes), the classes next to each other. kLanes threads own a row: part of a warp, or the whole block. A
//          thread takes 16-byte vectors kLanes apart. kRagged: rows do not begin at multiples of a vector, so a row's first and
//          last vectors hold elements of its neighbours, which are masked.
//          kSums: the losses and weights of a block's rows are summed up.
// Needs:   pointers aligned to kVector elements.
// Bound:   memory: the scores (and probabilities) are read once.

#include "dnnarray/scores.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Loss = float;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  static constexpr bool kSums = false;
  static constexpr bool kRagged = false;
  static constexpr int kVector = 4;
  static constexpr int kUnroll = 4;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY cross_entropy_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;
constexpr int kUnroll = Config::kUnroll;
constexpr bool kShares = Config::kProbabilities || Config::kSmoothing;

// A vector that may reach behind the array where its last row is ragged.
__device__ __forceinline__ V read(const T* p, long long at, long long size) {
  if constexpr (!Config::kRagged) {
    return load<T, kVector>(p + at);
  } else {
    if (at + kVector <= size) return load<T, kVector>(p + at);
    V part;
#pragma unroll
    for (int v = 0; v < kVector; ++v) part.at[v] = at + v < size ? p[at + v] : narrow<T>(A(0));
    return part;
  }
}

struct Row {
  long long start, end, size;
  A smoothing, spread;
};

// kUnroll vectors, `step` elements apart, into what is known of the row. kWhole: all of them lie in the row.
template <bool kWhole>
__device__ __forceinline__ void take(Scores<A>& found, const T* z, const T* q, const T* weight, const Row& row, long long at, int step) {
  using Which = Mask<Config::kRagged && !kWhole, kVector>;
  V part[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (kWhole) part[u] = load<T, kVector>(z + at + u * step);
    if (!kWhole && at + u * step < row.end) part[u] = read(z, at + u * step, row.size);
  }
  A values[kUnroll][kVector], scores[kVector], peak = found.peak;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const bool there = kWhole || at + u * step < row.end;
    const Which mask(at + u * step, row.start, row.end);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      values[u][v] = there && mask.has(v) ? widen(part[u].at[v]) : -infinity(A(0));
      scores[v] = values[u][v];
    }
    peak = larger(peak, in_pairs(scores, Larger()));
  }
  found.raise(peak);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (!kWhole && at + u * step >= row.end) continue;
    found.add(values[u]);
    if (!kShares) continue;
    const Which mask(at + u * step, row.start, row.end);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (!mask.has(v)) continue;
      const long long element = at + u * step + v;
      A share = Config::kProbabilities ? smoothed(widen(q[element]), row.smoothing, row.spread) : A(1);
      if (weight) share *= widen(weight[element - row.start]);
      found.add_share(values[u][v], share);
    }
  }
}

// The label of a row, the weight of its class and its score, fetched ahead of all else.
struct Target {
  A own = A(0), score = A(0);
  bool kept = false, valid = false;

  __device__ __forceinline__ Target(const Config::Target* target, const T* weight, const T* z, const Row& row, long long r, bool there,
                                    long long classes, long long ignore) {
    if (Config::kProbabilities || !there) return;
    const Label label(target[r], classes, ignore);
    kept = label.kept;
    valid = label.valid;
    own = label.weight(weight);
    if (kept && valid) score = widen(z[row.start + label.index]);
  }
};

__device__ __forceinline__ A row_loss(const Scores<A>& found, A log_sum, const Target& target, const Row& row) {
  if (Config::kProbabilities) return share_loss(found, log_sum);
  if (!target.kept) return A(0);
  if (!target.valid) return quiet_nan(A(0));
  A loss = target.own * (log_sum - (target.score - finite_base(found.peak)));
  if (Config::kSmoothing) loss = loss * (A(1) - row.smoothing) + share_loss(found, log_sum) * row.spread;
  return loss;
}

// Writes the loss and the weight of a row, or (kSums) their sums over the rows of the block.
__device__ __forceinline__ void put(A loss, A own, bool there, long long r, Config::Loss* losses, A* row_weights, A* shared) {
  constexpr int kRowsOfBlock = Config::kThreads / Config::kLanes;
  if constexpr (Config::kSums && kRowsOfBlock > 1) {
    if (!there) loss = own = A(0);
    block_reduce<Config::kThreads>(loss, Sum(), own, Sum(), shared);
    there = threadIdx.x == 0;
    r = blockIdx.x;
  }
  if (!there) return;
  losses[r] = narrow<Config::Loss>(loss);
  if (row_weights) row_weights[r] = own;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights, A* __restrict__ lse, long long rows,
                   long long classes, long long ignore, double smoothing) {
  constexpr int kLanes = Config::kLanes, kStep = kLanes * kVector;
  __shared__ A shared[2 * Config::kThreads / kWarp];
  const int lane = threadIdx.x % kLanes;
  const long long r = static_cast<long long>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const Row row{r * classes, r < rows ? (r + 1) * classes : r * classes, rows * classes, A(smoothing), A(smoothing / classes)};
  const T* q = reinterpret_cast<const T*>(target);  // where the target holds probabilities
  const bool first_lane = lane == 0 && r < rows;
  const Target own(target, weight, z, row, r, first_lane, classes, ignore);
  Scores<A> found;
  for (long long at = (Config::kRagged ? row.start - row.start % kVector : row.start) + lane * kVector; at < row.end; at += kStep * kUnroll) {
    if (at >= row.start && at + (kUnroll - 1) * kStep + kVector <= row.end) {
      take<true>(found, z, q, weight, row, at, kStep);
    } else {
      take<false>(found, z, q, weight, row, at, kStep);
    }
  }
  combine<kLanes, Config::kThreads, kShares>(found, shared);
  const A log_sum = log_of(found.sum);
  put(row_loss(found, log_sum, own, row), own.own, first_lane, r, losses, row_weights, shared);
  if (lse && first_lane) lse[r] = log_sum_exp(found, log_sum);
}
