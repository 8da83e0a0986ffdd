// The cross entropy of scores whose classes are not next to each other: z (outer, classes, inner); the formulas of cross_entropy_rows.
//
// Layout:  a thread owns kVector neighbouring rows (columns of the matrix classes x inner) and walks down the classes, so that a
//          warp reads contiguous memory at each step. Rows are numbered outer * inner + column.
// Needs:   pointers aligned to kVector elements, inner a multiple of kVector.
// Bound:   memory: the scores (and probabilities) are read once.

#include "dnnarray/index.cuh"
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
  static constexpr int kVector = 1;
  static constexpr int kUnroll = 8;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY cross_entropy_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;
constexpr int kUnroll = Config::kUnroll;
constexpr bool kShares = Config::kProbabilities || Config::kSmoothing;

struct Options {
  long long classes, inner, ignore;
  A smoothing, spread;
};

// kUnroll classes from `c` on, of all columns of the thread.
__device__ __forceinline__ void take(Scores<A> (&found)[kVector], const T* z, const T* q, const T* weight, const Options& o, long long c) {
  V part[kUnroll], probability[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (c + u >= o.classes) continue;
    part[u] = load<T, kVector>(z + (c + u) * o.inner);
    if constexpr (Config::kProbabilities) probability[u] = load<T, kVector>(q + (c + u) * o.inner);
  }
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    A values[kUnroll], peak = found[v].peak;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      values[u] = c + u < o.classes ? widen(part[u].at[v]) : -infinity(A(0));
      peak = larger(peak, values[u]);
    }
    found[v].raise(peak);
    found[v].add(values);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (kShares && c + u < o.classes) {
        A share = A(1);
        if constexpr (Config::kProbabilities) share = smoothed(widen(probability[u].at[v]), o.smoothing, o.spread);
        if (weight) share *= widen(weight[c + u]);
        found[v].add_share(values[u], share);
      }
    }
  }
}

// The label of a row, the weight of its class and its score, fetched ahead of all else. `z` points at the thread's column.
struct Target {
  A own = A(0), score = A(0);
  bool kept = false, valid = false;

  __device__ __forceinline__ void fetch(const Config::Target* target, const T* weight, const T* z, long long r, const Options& o) {
    const Label label(target[r], o.classes, o.ignore);
    kept = label.kept;
    valid = label.valid;
    own = label.weight(weight);
    if (kept && valid) score = widen(z[label.index * o.inner]);
  }
};

__device__ __forceinline__ A row_loss(const Scores<A>& found, A log_sum, const Target& target, const Options& o) {
  if (Config::kProbabilities) return share_loss(found, log_sum);
  if (!target.kept) return A(0);
  if (!target.valid) return quiet_nan(A(0));
  A loss = target.own * (log_sum - (target.score - finite_base(found.peak)));
  if (Config::kSmoothing) loss = loss * (A(1) - o.smoothing) + share_loss(found, log_sum) * o.spread;
  return loss;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) != 4 || kShares ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights, A* __restrict__ lse, long long rows,
                   long long classes, long long inner, long long ignore, double smoothing) {
  __shared__ A shared[2 * Config::kThreads / kWarp];
  const long long r = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  const Options o{classes, inner, ignore, A(smoothing), A(smoothing / classes)};
  A loss_sum = A(0), weight_sum = A(0);
  if (r < rows) {
    const Divided place = divide_index(r, inner);
    const long long offset = place.quotient * classes * inner + place.remainder;
    const T* q = reinterpret_cast<const T*>(target) + offset;  // where the target holds probabilities
    Target own[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (!Config::kProbabilities) own[v].fetch(target, weight, z + offset + v, r + v, o);
    }
    Scores<A> found[kVector];
    for (long long c = 0; c < classes; c += kUnroll) take(found, z + offset, q, weight, o, c);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A log_sum = log_of(found[v].sum), loss = row_loss(found[v], log_sum, own[v], o);
      loss_sum += loss;
      weight_sum += own[v].own;
      if (!Config::kSums) losses[r + v] = narrow<Config::Loss>(loss);
      if (lse) lse[r + v] = log_sum_exp(found[v], log_sum);
    }
  }
  if constexpr (Config::kSums) {
    block_reduce<Config::kThreads>(loss_sum, Sum(), weight_sum, Sum(), shared);
    if (threadIdx.x != 0) return;
    losses[blockIdx.x] = narrow<Config::Loss>(loss_sum);
    if (row_weights) row_weights[blockIdx.x] = weight_sum;
  }
}
