// The cross entropy of scores whose classes are not next to each other: z (outer, classes, inner); the formulas of
// cross_entropy_rows.
//
// Layout:  a thread owns kVector neighbouring rows (columns of the matrix classes x inner) and walks down the classes,
//          kUnroll at a time with the next ones on their way, so that a warp reads contiguous memory at each step; or
//          (kKept) holds all of them, which spares it half of the instructions. Rows are numbered outer * inner +
//          column. The score of the label is picked on the way: a look-up would fetch 32 bytes more for each row (all
//          classes held: 54 us by picking, 64 by looking up, 16x21x512x512 bfloat16, H200, 2026-11-22).
// Needs:   pointers aligned to kVector elements, inner a multiple of kVector; kKept: no more than kUnroll classes.
// Bound:   memory: the scores (and probabilities) are read once.

#include "dnnarray/core/index.cuh"
#include "loss/targets.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  using Loss = float;
  static constexpr bool kSums = false;
  static constexpr bool kKept = false;
  static constexpr int kVector = 1;
  static constexpr int kUnroll = 8;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long classes;
  long long ignore;
  double smoothing;
  long long inner;
};
#define DNNARRAY_ENTRY loss_cross_entropy_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kUnroll = Config::kUnroll;
constexpr bool kProbabilities = Config::kProbabilities, kShares = kProbabilities || Config::kSmoothing;
using V = Vec<T, kVector>;
using RowShares = Shares<T, kProbabilities>;

// How many of `left` classes are among the next kUnroll.
__device__ __forceinline__ int few(long long left) { return left < kUnroll ? static_cast<int>(left) : kUnroll; }

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 || kShares ? 1
                                                               : sizeof(T) == 2          ? (Config::kKept ? 6 : 7)
                                                                                         : 0)
    DNNARRAY_ENTRY(const T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights, A* __restrict__ lse,
                   const __grid_constant__ Arguments a) {
  __shared__ A shared[2 * Config::kThreads / kWarp];
  let_next_kernel_begin();
  const long long r = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  A loss_sum = A(0), weight_sum = A(0);
  if (r < a.rows) {
    const Divided place = divide_index(r, a.inner);
    const long long offset = place.quotient * a.classes * a.inner + place.remainder;
    const T* from = z + offset;
    V part[kUnroll];
    fetch(part, from, few(a.classes), a.inner);
    long long labels[kVector];
    Scores<A> found[kVector];
    A scores[kVector] = {};
    int places[kVector];  // of the labels, from class c on
    RowShares shares[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      labels[v] = kProbabilities ? 0 : static_cast<long long>(target[r + v]);
      places[v] = labels[v] >= 0 && labels[v] < a.classes ? static_cast<int>(labels[v]) : -1;
      shares[v] = {reinterpret_cast<const T*>(target) + offset + v, weight, a.inner, A(a.smoothing),
                   A(a.smoothing / a.classes)};
    }
    const auto take = [&](long long c) {
      take_columns<kShares>(found, part, shares, c, few(a.classes - c), [&](int u, int v, A z) {
        if (!kProbabilities && u == places[v]) scores[v] = z;
      });
    };
    if constexpr (Config::kKept) take(0);
    for (long long c = 0; !Config::kKept && c < a.classes; c += kUnroll) {
      V next[kUnroll];
      fetch(next, from + (c + kUnroll) * a.inner, few(a.classes - c - kUnroll), a.inner);
      take(c);
#pragma unroll
      for (int v = 0; v < kVector; ++v) places[v] -= kUnroll;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) part[u] = next[u];
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const Label label(labels[v], a.classes, a.ignore);
      const A own = kProbabilities ? A(0) : label.weight(weight), log_sum = log_for<T>(found[v].sum);
      const A loss = row_loss<Config::kSmoothing>(found[v], log_sum, label, own, scores[v], shares[v]);
      loss_sum += loss;
      weight_sum += own;
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
