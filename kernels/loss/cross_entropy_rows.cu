// The cross entropy of each row of scores, one read of the scores: l = (1 - e) w[t] (lse - z[t]) + e / C sum_c w[c]
// (lse - z[c]), or against probabilities q: l = sum_c ((1 - e) q[c] + e / C) w[c] (lse - z[c]).
//
// Layout:  z (rows, classes), the classes next to each other. kLanes threads own a row: part of a warp, or the whole
//          block. A thread takes 16-byte vectors kLanes apart, kUnroll at a time. kRagged: rows do not begin at
//          multiples of a vector; the classes before the first and behind the last whole vector go to one thread each.
//          kSums: the losses and weights of a block's rows are summed up.
// Needs:   pointers aligned to kVector elements; kRagged: at least 2 (kVector - 1) lanes.
// Bound:   memory: the scores (and probabilities) are read once.

#include "loss/targets.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  using Loss = float;
  static constexpr bool kSums = false;
  static constexpr bool kRagged = false;
  static constexpr int kVector = 4;
  static constexpr int kUnroll = 4;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long classes;
  long long ignore;
  double smoothing;
};
#define DNNARRAY_ENTRY loss_cross_entropy_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kUnroll = Config::kUnroll, kLanes = Config::kLanes, kStep = kLanes * kVector;
constexpr bool kProbabilities = Config::kProbabilities, kShares = kProbabilities || Config::kSmoothing;
using Rows = RowKernel<T, kProbabilities, Config::kSmoothing>;
static_assert(!Config::kRagged || kLanes >= 2 * (kVector - 1), "one thread for each class beside the vectors");

// Writes the loss and the weight of a row, or (kSums) their sums over the rows of the block.
__device__ __forceinline__ void put(A loss, A own, bool there, long long r, Config::Loss* losses, A* row_weights,
                                    A* shared) {
  constexpr int kRowsOfBlock = Config::kThreads / kLanes;
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
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights, A* __restrict__ lse,
                   const __grid_constant__ Arguments a) {
  __shared__ A shared[2 * Config::kThreads / kWarp];
  let_next_kernel_begin();
  const int lane = threadIdx.x % kLanes;
  const long long r = static_cast<long long>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const bool there = r < a.rows, first_lane = lane == 0 && there;
  const long long start = there ? r * a.classes : 0;
  const RowVectors<kVector, Config::kRagged> vectors(start, there ? a.classes : 0);
  // The target holds probabilities or labels.
  const Shares<T, kProbabilities> shares{reinterpret_cast<const T*>(target) + start, weight, 1, A(a.smoothing),
                                         A(a.smoothing / a.classes)};
  const T* row = z + start;
  const Label label(!kProbabilities && first_lane ? target[r] : Config::Target(0), a.classes,
                    a.ignore);  // on its way while the row is read
  const long long edge = vectors.edge(lane);
  const A beside = edge >= 0 ? widen(row[edge]) : -infinity(A(0));
  const int mine = vectors.of(lane, kLanes);
  Scores<A> found;
  for (int k = 0; k < mine; k += kUnroll) {
    const long long c = vectors.first(lane) + static_cast<long long>(k) * kStep;
    Vec<T, kVector> part[kUnroll];
    fetch(part, row + c, mine - k, kStep);
    Rows::take(found, part, shares, c, kStep, mine - k);
  }
  if (edge >= 0) Rows::take(found, beside, shares, edge);
  const bool labelled = !kProbabilities && first_lane && label.kept && label.valid;
  const A score = labelled ? widen(row[label.index]) : A(0);  // from the cache
  const A own = !kProbabilities && first_lane ? label.weight(weight) : A(0);
  combine<kLanes, Config::kThreads, kShares>(found, shared);
  const A log_sum = log_of(found.sum);
  put(row_loss<Config::kSmoothing>(found, log_sum, label, own, score, shares), own, first_lane, r, losses, row_weights,
      shared);
  if (lse && first_lane) lse[r] = log_sum_exp(found, log_sum);
}
