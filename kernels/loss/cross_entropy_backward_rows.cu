// Gradients of the cross entropy of each row: dz = g (sum(s) softmax(z) - s), where s is the smoothed target times the
// class weights; for probabilities dq = -g (1 - e) w log_softmax(z) too.
//
// Layout:  z (rows, classes), the classes next to each other. kLanes threads own a row, kKeep vectors of it in
//          registers; what a longer row has beyond is read again, backwards, since its end is still in the cache
//          (kLong: there are such rows). kRagged: as in cross_entropy_rows.
// Needs:   pointers aligned to kVector elements; kRagged: at least 2 (kVector - 1) lanes.
// Bound:   memory: scores read once, gradients written once (long rows: read twice, the second time mostly from L2).

#include "loss/targets.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  static constexpr bool kRowGradients = false;
  static constexpr bool kRagged = false;
  static constexpr bool kLong = true;
  static constexpr int kVector = 4;
  static constexpr int kKeep = 8;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long classes;
  long long ignore;
  double smoothing;
  double divisor;
  long long parts;
  long long rows;
};
#define DNNARRAY_ENTRY loss_cross_entropy_backward_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kStep = kLanes * kVector, kKeep = Config::kKeep;
constexpr int kBatch = 16 / kVector < 4 ? 16 / kVector : 4;
constexpr bool kProbabilities = Config::kProbabilities, kShares = kProbabilities || Config::kSmoothing;
using V = Vec<T, kVector>;
using Rows = RowKernel<T, kProbabilities, Config::kSmoothing>;
static_assert(!Config::kRagged || kLanes >= 2 * (kVector - 1), "one thread for each class beside the vectors");

// `grad` holds the gradient of each row's loss or (kRowGradients false) that of their sum over the sum of `parts`
// totals, or over `divisor` where those are not given. Beside probabilities dz or dq may be null, which is not wanted
// then.
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ z, const Config::Target* __restrict__ target,
                   const T* __restrict__ weight, const A* __restrict__ totals, T* __restrict__ dz, T* __restrict__ dq,
                   const __grid_constant__ Arguments a) {
  __shared__ A shared[Config::kThreads / kWarp];
  const int lane = threadIdx.x % kLanes;
  const long long r = static_cast<long long>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const bool there = r < a.rows;
  const long long start = there ? r * a.classes : 0;
  const RowVectors<kVector, Config::kRagged> vectors(start, there ? a.classes : 0);
  // The target holds probabilities or labels.
  const Shares<T, kProbabilities> shares{reinterpret_cast<const T*>(target) + start, weight, 1, A(a.smoothing),
                                         A(a.smoothing / a.classes)};
  const T* row = z + start;
  // What is needed between both passes comes while the row is read.
  const Label label(!kProbabilities && there ? target[r] : Config::Target(0), a.classes, a.ignore);
  const A incoming = !there ? A(0) : widen(grad[Config::kRowGradients ? r : 0]);
  const long long edge = vectors.edge(lane);
  const T beside = edge >= 0 ? row[edge] : narrow<T>(-infinity(A(0)));
  const int mine = vectors.of(lane, kLanes);
  const long long first = vectors.first(lane);
  Scores<A> found;
  V kept[kKeep], part[kBatch];
  fetch(kept, row + first, mine, kStep);
  const A total = Config::kRowGradients ? A(1) : total_of(totals, a.parts, a.divisor);
  Rows::take(found, kept, shares, first, kStep, mine);
  int k = kKeep;
  for (; Config::kLong && k < mine; k += kBatch) {
    const long long c = first + static_cast<long long>(k) * kStep;
    fetch(part, row + c, mine - k, kStep);
    Rows::take(found, part, shares, c, kStep, mine - k);
  }
  if (edge >= 0) Rows::take(found, widen(beside), shares, edge);
  const A own = kProbabilities ? A(1) : label.weight(weight);
  combine<kLanes, Config::kThreads, kShares>(found, shared);
  if (!there) return;
  const Factors<A> f = factors<Config::kSmoothing>(found, label, own, incoming / total, shares);
  T *to = further<kProbabilities>(dz, start), *other = further<kProbabilities>(dq, start);
  for (k -= kBatch; Config::kLong && k >= kKeep; k -= kBatch) {
    const long long c = first + static_cast<long long>(k) * kStep;
    fetch(part, row + c, mine - k, kStep);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (k + u < mine) Rows::put(part[u], f, shares, to, other, c + u * kStep);
    }
  }
#pragma unroll
  for (int u = 0; u < kKeep; ++u) {
    forget_unpacked(kept[u]);
    if (u < mine) Rows::put(kept[u], f, shares, to, other, first + u * kStep);
  }
  if (edge >= 0) Rows::put(Vec<T, 1>{beside}, f, shares, to, other, edge);
}
