// Losses of rows of scores z + bias and the gradients of the scores for a loss whose gradient is 1, of rows that stay
// on the chip in between; the formulas of linear_statistics and linear_gradient, which read the scores twice.
//
// Layout:  z, dz and low (rows, pitch), `classes` next to each other. A row belongs to a cluster of kBlocks blocks;
//          their threads take turns at its vectors of 16 bytes, at most `count` each, copied to a place in shared
//          memory where only their own thread looks; every copy is under way before the first is used. What is found of
//          the row is exchanged once, warp by warp.
// Needs:   z and dz aligned to 16 bytes, pitch a multiple of 8; `count` vectors of shared memory for each thread;
//          kBlocks > 1 from sm_90 on; not for double. What stands behind `classes` is read and not used.
// Bound:   memory: scores read once, gradients written once.

#include "dnnarray/core/cluster.cuh"
#include "loss/linear_scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Target = long long;
  static constexpr bool kSmoothing = false;
  static constexpr bool kSplit = false;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 512;
};
struct Arguments {
  const float* total;
  const float* shares;
  Config::Element* ones;
  float* losses;
  float* row_weights;
  float* lse;
  long long held;
  long long pitch;
  long long classes;
  long long ignore;
  double smoothing;
  double factor;
};
#define DNNARRAY_ENTRY loss_linear_rows_cluster_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr bool kSmoothing = Config::kSmoothing;
constexpr int kVector = 4, kThreads = Config::kThreads, kBlocks = Config::kBlocks, kStride = kBlocks * kThreads,
              kBatch = 4;
using V = Vec<float, kVector>;
using Table = Gathered<kBlocks, kThreads, kSmoothing ? 4 : 2>;

// This thread's share of a row, and the classes that it holds.
struct Line {
  V* const vectors;  // kThreads apart
  const T *bias, *weight;
  const int first, classes, mine;

  __device__ __forceinline__ int at(int k) const { return first + k * kStride * kVector; }
  // Some scores from the k-th vector on, -inf where there are none; with a bias they are left where their vector was.
  __device__ __forceinline__ void scores(float (&values)[kBatch * kVector], int k) const {
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      V reg_z{};
      if (k + u < mine) reg_z = vectors[(k + u) * kThreads];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const bool there = k + u < mine && at(k + u) + v < classes;
        if (bias && there) reg_z.at[v] += widen(bias[at(k + u) + v]);
        if (!there) reg_z.at[v] = -infinity(0.0f);
        values[u * kVector + v] = reg_z.at[v];
      }
      if (bias && k + u < mine) vectors[(k + u) * kThreads] = reg_z;
    }
  }
};

// What this thread finds of the row.
__device__ __forceinline__ Scores<float> look(const Line& line) {
  Scores<float> found;
  for (int k = 0; k < line.mine; k += kBatch) {
    float values[kBatch * kVector], tops[kBatch * kVector];
    line.scores(values, k);
#pragma unroll
    for (int v = 0; v < kBatch * kVector; ++v) tops[v] = values[v];
    found.raise(larger(found.peak, in_pairs(tops, Larger())));
    found.add(values);
    if constexpr (kSmoothing) {
#pragma unroll
      for (int v = 0; v < kBatch * kVector; ++v) {
        const int at = line.at(k + v / kVector) + v % kVector;
        if (k + v / kVector < line.mine && at < line.classes)
          found.add_share(values[v], line.weight ? widen(line.weight[at]) : 1.0f);
      }
    }
  }
  return found;
}

// What all threads of the cluster have found: from each warp its peak, its sum and its shares.
__device__ __forceinline__ Scores<float> combine(Table& table, Scores<float> found, int rank) {
  found.raise(warp_reduce(found.peak, Larger()));
  float mine[kSmoothing ? 4 : 2];
  mine[0] = found.peak, mine[1] = warp_sum(found.sum);
  if constexpr (kSmoothing) mine[2] = warp_sum(found.shifted), mine[3] = warp_sum(found.share);
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  table.put(mine, rank);
  cluster_barrier<kBlocks>();
  Scores<float> all;
  all.peak = Table::reduce(Max(), [&](int i) { return table.at[0][i]; });
  const float base = finite_base(all.peak);
  all.sum = Table::reduce(Sum(), [&](int i) { return table.at[1][i] * quick_exp(table.at[0][i] - base); });
  if constexpr (kSmoothing) {
    all.share = Table::reduce(Sum(), [&](int i) { return table.at[3][i]; });
    all.shifted = Table::reduce(Sum(), [&](int i) {
      const float own = table.at[0][i], share = table.at[3][i];
      return table.at[2][i] + (share != 0.0f && own != -infinity(own) ? share * (own - base) : 0.0f);
    });
  }
  return all;
}

__device__ __forceinline__ void put(const Line& line, const Slopes<float>& slopes, T* dz, T* low) {
#pragma unroll 2
  for (int k = 0; k < line.mine; ++k) {
    const V reg_z = line.vectors[k * kThreads];
    const int at = line.at(k);
    float d[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v)
      d[v] = slopes.of<kSmoothing>(reg_z.at[v], line.weight, at + v, at + v < line.classes);
    const Vec<T, kVector> rounded = narrow_all<T, kVector>(d);
    store(dz + at, rounded);
    if constexpr (Config::kSplit) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) d[v] -= widen(rounded.at[v]);
      store(low + at, narrow_all<T, kVector>(d));
    }
  }
}

// Arguments as in linear_statistics and linear_gradient; `held` rows have their gradients in dz.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ z, const T* __restrict__ bias, const T* __restrict__ weight,
                   const Config::Target* __restrict__ target, T* __restrict__ dz, T* __restrict__ low,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Table table;
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, lane = rank * kThreads + threadIdx.x;
  const int extent = static_cast<int>(a.classes), left = (extent + kVector - 1) / kVector - lane;
  const Line line{reinterpret_cast<V*>(memory) + threadIdx.x,   bias, weight, lane * kVector, extent,
                  left > 0 ? (left + kStride - 1) / kStride : 0};
  const long long r = blockIdx.x / kBlocks;
  const float* row = z + r * a.pitch;
#pragma unroll 4
  for (int k = 0; k < line.mine; ++k) cp_async_cg(line.vectors + k * kThreads, row + line.at(k));
  cp_async_commit_group();
  const Label label(target[r], a.classes, a.ignore);
  const float own = label.weight(weight), given = static_cast<float>(a.factor) / (a.total ? *a.total : 1.0f);
  cp_async_wait_group<0>();

  const Scores<float> found = combine(table, look(line), rank);
  const float log_sum = log_of(found.sum), all = log_sum_exp(found, log_sum);
  put(line, slopes<kSmoothing>(label, own, given, a.shares, all, a.classes, static_cast<float>(a.smoothing)),
      dz + r * a.pitch, low + r * a.pitch);
  if (lane != 0) return;
  const float picked = label.valid ? row[label.index] + (bias ? widen(bias[label.index]) : 0.0f) : 0.0f;
  a.losses[r] = row_loss<kSmoothing>(found, log_sum, label, own, picked, static_cast<float>(a.smoothing), a.classes);
  if (a.row_weights) a.row_weights[r] = own;
  a.lse[r] = all;
  if (a.ones) {
    a.ones[r] = narrow<T>(1.0f);
    if (Config::kSplit) a.ones[a.held + r] = narrow<T>(1.0f);
  }
}
