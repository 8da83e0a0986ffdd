// Gradients of the cross entropy of long rows that stay on the chip; the formulas of cross_entropy_backward_rows.
//
// Layout:  z (rows, classes), the classes next to each other. A row belongs to a cluster of kBlocks blocks; their
//          threads take turns at its vectors of 16 bytes, at most `count` each. The vectors are copied to shared
//          memory, to a place where only their own thread looks; every copy is under way before the first is used. What
//          is found of the row is exchanged once, warp by warp. Single classes before and behind the whole vectors go
//          to one thread each.
// Needs:   pointers aligned to 16 bytes; `count` vectors of shared memory for each thread; kBlocks > 1 from sm_90 on;
//          not for double.
// Bound:   memory: scores read once, gradients written once.

#include "dnnarray/core/cluster.cuh"
#include "loss/targets.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  static constexpr bool kRowGradients = false;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 512;
};
struct Arguments {
  long long classes;
  long long ignore;
  double smoothing;
  double divisor;
  long long parts;
};
#define DNNARRAY_ENTRY loss_cross_entropy_backward_cluster_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kVector = 16 / sizeof(T), kThreads = Config::kThreads, kBlocks = Config::kBlocks,
              kStride = kBlocks * kThreads;
constexpr int kStep = kStride * kVector, kBatch = 4;
constexpr bool kProbabilities = Config::kProbabilities, kShares = kProbabilities || Config::kSmoothing;
using V = Vec<T, kVector>;
using Rows = RowKernel<T, kProbabilities, Config::kSmoothing>;
using Table = Gathered<kBlocks, kThreads, 2 + kShares>;

// What all threads of the cluster have found: from each warp its peak, its sum and its shares.
__device__ __forceinline__ Scores<float> combine(Table& table, Scores<float> found, int rank) {
  found.raise(warp_reduce(found.peak, Larger()));
  float mine[2 + kShares];
  mine[0] = found.peak, mine[1] = warp_sum(found.sum);
  if constexpr (kShares) mine[2] = warp_sum(found.share);
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  table.put(mine, rank);
  cluster_barrier<kBlocks>();
  Scores<float> all;
  all.peak = Table::reduce(Max(), [&](int i) { return table.at[0][i]; });
  all.sum =
      Table::reduce(Sum(), [&](int i) { return table.at[1][i] * quick_exp(table.at[0][i] - finite_base(all.peak)); });
  if constexpr (kShares) all.share = Table::reduce(Sum(), [&](int i) { return table.at[2][i]; });
  return all;
}

// Arguments as in cross_entropy_backward_rows.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ z, const Config::Target* __restrict__ target,
                   const T* __restrict__ weight, const float* __restrict__ totals, T* __restrict__ dz,
                   T* __restrict__ dq, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Table table;
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, lane = rank * kThreads + threadIdx.x;
  const long long r = blockIdx.x / kBlocks, start = r * a.classes;
  const RowVectors<kVector, true> vectors(start, a.classes);
  const Shares<T, kProbabilities> shares{reinterpret_cast<const T*>(target) + start, weight, 1,
                                         static_cast<float>(a.smoothing), static_cast<float>(a.smoothing / a.classes)};
  const T* row = z + start;
  const int mine = vectors.of(lane, kStride);
  const long long first = vectors.first(lane);
  V* const line = reinterpret_cast<V*>(memory) + threadIdx.x;
#pragma unroll 4
  for (int k = 0; k < mine; ++k) cp_async_cg(line + k * kThreads, row + first + static_cast<long long>(k) * kStep);
  cp_async_commit_group();
  const Label label(kProbabilities ? Config::Target(0) : target[r], a.classes, a.ignore);
  const float incoming = widen(grad[Config::kRowGradients ? r : 0]), own = kProbabilities ? 1.0f : label.weight(weight);
  const float total = Config::kRowGradients ? 1.0f : total_of(totals, a.parts, a.divisor);
  const long long edge = vectors.edge(lane);
  const T beside = edge >= 0 ? row[edge] : narrow<T>(-infinity(0.0f));
  cp_async_wait_group<0>();

  Scores<float> found;
  for (int k = 0; k < mine; k += kBatch) {
    V part[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      part[u] = load_or_lowest<kVector>(reinterpret_cast<const T*>(line + (k + u) * kThreads), k + u < mine);
    Rows::take(found, part, shares, first + static_cast<long long>(k) * kStep, kStep, mine - k);
  }
  if (edge >= 0) Rows::take(found, widen(beside), shares, edge);
  found = combine(table, found, rank);
  const Factors<float> f = factors<Config::kSmoothing>(found, label, own, incoming / total, shares);
  T *to = further<kProbabilities>(dz, start), *other = further<kProbabilities>(dq, start);
#pragma unroll 2
  for (int k = 0; k < mine; ++k)
    Rows::put(line[k * kThreads], f, shares, to, other, first + static_cast<long long>(k) * kStep);
  if (edge >= 0) Rows::put(Vec<T, 1>{beside}, f, shares, to, other, edge);
}
