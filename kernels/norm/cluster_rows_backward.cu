// dx[r, :] = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s - mean) * rstd;
// rms norm leaves average(h) out. Beside it each cluster's share of dweight = sum(grad * u) and dbias = sum(grad) over its rows.
//
// Layout:  rows of contiguous columns. Clusters of kBlocks blocks stay and take every so manieth group of rows: kGroup rows that all threads of
//          the cluster share, one after the other, or, with kLanes, a row for each kLanes threads of a block, kGroup times. Thread t of a
//          row owns its vectors t, t + kStride, ..., kVectors at the most: of the rows, which are copied to shared memory kStages groups
//          ahead, to a place where only their own thread looks, and of the running sums of dweight and dbias, in registers. A group of
//          shared rows takes one barrier (one more for each row where the statistics were not saved): each warp sends its sums to all
//          blocks. A row of kLanes, within a warp, needs none.
//          Cluster c writes its sums to dweight[c, :] and dbias[c, :]; kernels/norm/fold.cu adds them up in a fixed order.
// Needs:   columns a multiple of a vector and at most kStride kVectors vectors; pointers aligned to 16 bytes; shared memory for kStages
//          groups of rows and the weight; kBlocks > 1 from sm_90 on; not for double.
// Bound:   memory: grad and x read once, dx written once.

#include "dnnarray/spread.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Mean = float;
  using Rstd = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr bool kParameters = true;
  static constexpr bool kGiven = true;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 512;
  static constexpr int kLanes = 0;
  static constexpr int kVectors = 4;
  static constexpr int kStages = 1;
  static constexpr int kGroup = 1;
  static constexpr int kResident = 2;
};
#define DNNARRAY_ENTRY norm_cluster_rows_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kVectors = Config::kVectors;
constexpr int kLanes = Config::kLanes, kStride = kLanes > 0 ? kLanes : kBlocks * kThreads, kRows = kLanes > 0 ? kThreads / kLanes : 1;
constexpr int kStages = Config::kStages, kGroup = Config::kGroup, kArrays = Config::kAdd ? 3 : 2, kSlot = kArrays * kVectors * kThreads;
constexpr bool kHalf = sizeof(T) == 2;
constexpr bool kBias = Config::kCentred && Config::kParameters;

extern __shared__ __align__(16) Words memory[];

struct Arrays {
  const T *grad, *x, *residual;

  // Vector k of this thread in a row that starts at `start`, to its place in shared memory.
  __device__ __forceinline__ void fetch(Words* to, int k, long long at) const {
    copy_async(to + (0 * kVectors + k) * kThreads, grad + at);
    copy_async(to + (1 * kVectors + k) * kThreads, x + at);
    if constexpr (Config::kAdd) copy_async(to + (2 * kVectors + k) * kThreads, residual + at);
  }
};

// The values of vector k: of the gradient, and of x (+ residual).
struct Pair {
  float g[V], s[V];

  __device__ __forceinline__ Pair(const Words* from, int k) {
    const Words wg = load_again(from + k * kThreads), wx = load_again(from + (kVectors + k) * kThreads);
    const Words wr = Config::kAdd ? load_again(from + (2 * kVectors + k) * kThreads) : wx;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      g[j] = element<T>(wg, j);
      s[j] = Config::kAdd ? element<T>(wx, j) + element<T>(wr, j) : element<T>(wx, j);
    }
  }
};

// This thread's vectors of the weight, which stay in shared memory behind the rows: from L2, each row's share of it would cost as much as x.
struct Weights {
  static constexpr int kWords = V * sizeof(Config::Weight) / 16;
  Words* kept;

  __device__ __forceinline__ void fetch(const Config::Weight* weight, int own, int vectors) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = own + k * kStride;
      if (i >= vectors) break;
#pragma unroll
      for (int part = 0; part < kWords; ++part) {
        Words* const to = kept + (k * kWords + part) * kThreads;
        float ones[V / kWords];
#pragma unroll
        for (int j = 0; j < V / kWords; ++j) ones[j] = 1.0f;
        if (weight != nullptr) {
          copy_async(to, weight + i * V + part * (V / kWords));
        } else {
          *to = words_of<Config::Weight>(ones);
        }
      }
    }
  }
  __device__ __forceinline__ void read(float (&to)[V], int k) const {
#pragma unroll
    for (int part = 0; part < kWords; ++part) {
      const Words words = load_again(kept + (k * kWords + part) * kThreads);
#pragma unroll
      for (int j = 0; j < V / kWords; ++j) to[part * (V / kWords) + j] = element<Config::Weight>(words, j);
    }
  }
};

// The sums over the threads of a row, for all rows of a group.
using Table = Gathered<kBlocks, kThreads, 2 * kGroup>;

__device__ __forceinline__ void sum_over_rows(float (&sums)[2 * kGroup], Table& table, int rank) {
#pragma unroll
  for (int i = 0; i < 2 * kGroup; ++i) sums[i] = Config::kCentred || i % 2 == 1 ? warp_sum<kLanes == 0 ? kWarp : kLanes>(sums[i]) : 0.0f;
  if constexpr (kLanes > 0) return;
  table.put(sums, rank);
  cluster_barrier<kBlocks>();
#pragma unroll
  for (int i = 0; i < 2 * kGroup; ++i) {
    if (Config::kCentred || i % 2 == 1) sums[i] = Table::reduce(Sum(), [&](int entry) { return table.at[i][entry]; });
  }
}

// A row's mean and rstd, and u = (s - mean) * rstd; for half types in one operation, whose rounding is far below that of s.
struct Row {
  float mean, rstd, shift;

  __device__ __forceinline__ void set(float m, float r) { mean = m, rstd = r, shift = -m * r; }
  __device__ __forceinline__ float u(float s) const {
    if constexpr (!Config::kCentred) return s * rstd;
    return kHalf ? s * rstd + shift : (s - mean) * rstd;
  }
};

// This thread's columns of a share; with kLanes those of the block's rows are added up first, in the shared memory that the rows leave.
__device__ __forceinline__ void write_share(float* share, const float (&sums)[kVectors][V], int own, int vectors) {
  float* const together = kLanes > 0 ? reinterpret_cast<float*>(memory) : share;
  const int columns = vectors * V, row = kLanes > 0 ? threadIdx.x / kStride : 0;
  if constexpr (kLanes > 0) __syncthreads();
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = own + k * kStride;
    if (i >= vectors) break;
#pragma unroll
    for (int j = 0; j < V; j += 4)
      store(together + row * columns + i * V + j, Vec<float, 4>{sums[k][j], sums[k][j + 1], sums[k][j + 2], sums[k][j + 3]});
  }
  if constexpr (kLanes > 0) {
    __syncthreads();
    for (int j = threadIdx.x; j < columns; j += kThreads) {
      float total = together[j];
#pragma unroll
      for (int r = 1; r < kRows; ++r) total += together[r * columns + j];
      share[j] = total;
    }
  }
}

// Null: grad_sum, residual, weight, dresidual, dweight and dbias where absent, mean_of and rstd_of_row too without kGiven.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads, Config::kResident)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ grad_sum, const T* __restrict__ x, const T* __restrict__ residual,
                   const Config::Weight* __restrict__ weight, const Config::Mean* __restrict__ mean_of,
                   const Config::Rstd* __restrict__ rstd_of_row, T* __restrict__ dx, T* __restrict__ dresidual, float* __restrict__ dweight,
                   float* __restrict__ dbias, long long rows, long long columns, double eps) {
  __shared__ Table tables[kLanes > 0 ? 1 : 2];
  const int rank = blockIdx.x % kBlocks, own = kLanes > 0 ? threadIdx.x % kStride : rank * kThreads + threadIdx.x;
  const int vectors = static_cast<int>(columns / V), count = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long cluster = blockIdx.x / kBlocks, step = static_cast<long long>(gridDim.x / kBlocks) * (kRows * kGroup);
  const long long first = cluster * (kRows * kGroup) + (kLanes > 0 ? threadIdx.x / kStride : 0);  // row of this thread in the first group
  const float share = 1.0f / static_cast<float>(columns);
  const Arrays arrays = {grad, x, residual};
  float of_weight[kVectors][V] = {}, of_bias[kVectors][V] = {};
  float next_mean[kGroup] = {}, next_rstd[kGroup] = {};
  const auto prefetch = [&](long long row) {
#pragma unroll
    for (int r = 0; r < kGroup; ++r, row += kRows) {
      if (row >= rows) return;
      if (Config::kCentred && (Config::kGiven || mean_of != nullptr)) next_mean[r] = widen(mean_of[row]);
      if (Config::kGiven || rstd_of_row != nullptr) next_rstd[r] = widen(rstd_of_row[row]);
    }
  };
  Words* const ring = memory + threadIdx.x;
  const Weights weights = {ring + kStages * kGroup * kSlot};
  weights.fetch(weight, own, vectors);
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      const long long row = first + s * step + r * kRows;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int i = own + k * kStride;
        if (row < rows && i < vectors) arrays.fetch(ring + (s * kGroup + r) * kSlot, k, row * columns + i * V);
      }
    }
    copies_commit();
  }
  prefetch(first);
  if constexpr (kBlocks > 1) cluster_barrier<kBlocks>();  // every block is there
  int stage = 0, turn = 0;
  for (long long row = first; row - first + cluster * (kRows * kGroup) < rows; row += step) {
    Words* const mine = ring + stage * kGroup * kSlot;
    Row of[kGroup];
#pragma unroll
    for (int r = 0; r < kGroup; ++r) of[r].set(next_mean[r], next_rstd[r]);
    prefetch(row + step);
    copies_wait<kStages - 1>();
    if constexpr (!Config::kGiven) {
      __shared__ Spread<T, Config::kCentred, kBlocks, kThreads, kLanes> spreads[kGroup];
#pragma unroll
      for (int r = 0; r < kGroup; ++r) {
        const auto visit = [&](auto f, int limit) {
#pragma unroll
          for (int k = 0; k < kVectors; ++k) {
            if (k >= limit) break;
            const Pair p(mine + r * kSlot, k);
#pragma unroll
            for (int j = 0; j < V; ++j) f(p.s[j]);
          }
        };
        float mean, delta, rstd;
        spreads[r].template find<V>(visit, count, share, static_cast<float>(eps), rank, mean, delta, rstd);
        of[r].set(Config::kCentred && mean_of != nullptr ? of[r].mean : mean + delta, rstd_of_row != nullptr ? of[r].rstd : rstd);
      }
    }
    float sums[2 * kGroup] = {};
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int i = own + k * kStride;
        if (i >= vectors || row + r * kRows >= rows) break;
        const Pair p(mine + r * kSlot, k);
        float w[V];
        weights.read(w, k);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float u = of[r].u(p.s[j]), h = rounded_product(p.g[j], w[j]);
          if constexpr (Config::kParameters) of_weight[k][j] += p.g[j] * u;
          if constexpr (kBias) of_bias[k][j] += p.g[j];
          if constexpr (Config::kCentred) sums[2 * r] += h;
          sums[2 * r + 1] += h * u;
        }
      }
    }
    sum_over_rows(sums, tables[turn], rank);
#pragma unroll
    for (int r = 0; r < kGroup; ++r) {
      const float average = sums[2 * r] * share, projection = sums[2 * r + 1] * share;
      const long long start = (row + r * kRows) * columns;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int i = own + k * kStride;
        if (i >= vectors || row + r * kRows >= rows) break;
        const Pair p(mine + r * kSlot, k);
        float w[V], d[V];
        weights.read(w, k);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float h = rounded_product(p.g[j], w[j]);
          d[j] = of[r].rstd * ((Config::kCentred ? h - average : h) - of[r].u(p.s[j]) * projection);
        }
        if (Config::kAdd && grad_sum != nullptr) {
          const Words more = load_words(grad_sum + start + i * V);
#pragma unroll
          for (int j = 0; j < V; ++j) d[j] += element<T>(more, j);
        }
        if (row + r * kRows + kStages * step < rows) arrays.fetch(mine + r * kSlot, k, start + kStages * step * columns + i * V);
        const Words out = words_of<T>(d);
        store_words(dx + start + i * V, out);
        if constexpr (Config::kAdd) store_words(dresidual + start + i * V, out);
      }
    }
    copies_commit();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if constexpr (kLanes == 0) turn ^= 1;
  }
  if constexpr (Config::kParameters) {
    copies_wait<0>();
    if (dweight != nullptr) write_share(dweight + cluster * columns, of_weight, own, vectors);
    if (kBias && dbias != nullptr) write_share(dbias + cluster * columns, of_bias, own, vectors);
  }
}
