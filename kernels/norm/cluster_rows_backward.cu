// dx[r, :] = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s - mean) * rstd;
// rms norm leaves average(h) out. Beside it each cluster's share of dweight = sum(grad * u) and dbias = sum(grad) over its rows.
//
// Layout:  rows of contiguous columns. Clusters of kBlocks blocks stay and take every so manieth group of rows: one row that all threads of
//          the cluster share, or, with kLanes, a row for each kLanes threads of a block. Thread t of a row owns its vectors t, t + kStride,
//          ..., kVectors at the most: of the rows, which are copied to shared memory kStages groups ahead, to a place where only their own
//          thread looks, and of the running sums of dweight and dbias, in registers. A shared row takes one barrier (two where the
//          statistics were not saved): each warp sends its sums to all blocks. A row of kLanes, within a warp, needs none.
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
  static constexpr int kResident = 2;
};
#define DNNARRAY_ENTRY norm_cluster_rows_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kVectors = Config::kVectors;
constexpr int kLanes = Config::kLanes, kStride = kLanes > 0 ? kLanes : kBlocks * kThreads, kRows = kLanes > 0 ? kThreads / kLanes : 1;
constexpr int kStages = Config::kStages, kArrays = Config::kAdd ? 3 : 2, kSlot = kArrays * kVectors * kThreads;
constexpr bool kHalf = sizeof(T) == 2;
constexpr bool kBias = Config::kCentred && Config::kParameters;
// Saved statistics come a row ahead, unless the sums of two vectors and the search for those that were not saved fill the 64 registers.
constexpr bool kAhead = Config::kGiven || kHalf || !kBias || !Config::kAdd || kThreads * Config::kResident < 1024 || kVectors < 2;

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

// Two sums over the threads of a row; rms norm needs the second only.
using Table = Gathered<kBlocks, kThreads, 2>;

__device__ __forceinline__ void sum_over_row(float& average, float& projection, Table& table, int rank) {
  const float mine[2] = {Config::kCentred ? warp_sum<kLanes == 0 ? kWarp : kLanes>(average) : 0.0f,
                         warp_sum<kLanes == 0 ? kWarp : kLanes>(projection)};
  average = mine[0], projection = mine[1];
  if constexpr (kLanes == 0) {
    table.put(mine, rank);
    cluster_barrier<kBlocks>();
    if constexpr (Config::kCentred) average = Table::reduce(Sum(), [&](int i) { return table.at[0][i]; });
    projection = Table::reduce(Sum(), [&](int i) { return table.at[1][i]; });
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

// The thread's `count` vectors of a row at `from` go into the running sums and into those of the row.
__device__ __forceinline__ void take_row(const Words* from, int count, const Weights& weights, const Row& row, float (&of_weight)[kVectors][V],
                                         float (&of_bias)[kVectors][V], float& average, float& projection) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (k >= count) break;
    const Pair p(from, k);
    float w[V];
    weights.read(w, k);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float u = row.u(p.s[j]), h = rounded_product(p.g[j], w[j]);
      if constexpr (Config::kParameters) of_weight[k][j] += p.g[j] * u;
      if constexpr (kBias) of_bias[k][j] += p.g[j];
      if constexpr (Config::kCentred) average += h;
      projection += h * u;
    }
  }
}

// The statistics that were not saved.
__device__ __forceinline__ void find_statistics(Row& row, const Words* from, int count, float share, float eps, int rank, bool has_mean,
                                                bool has_rstd) {
  __shared__ Spread<T, Config::kCentred, kBlocks, kThreads, kLanes> spread;
  const auto visit = [&](auto f, int limit) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= limit) break;
      const Pair p(from, k);
#pragma unroll
      for (int j = 0; j < V; ++j) f(p.s[j]);
    }
  };
  float mean, delta, rstd;
  spread.template find<V>(visit, count, share, eps, rank, mean, delta, rstd);
  row.set(Config::kCentred && has_mean ? row.mean : mean + delta, has_rstd ? row.rstd : rstd);
}

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
  const long long cluster = blockIdx.x / kBlocks, step = static_cast<long long>(gridDim.x / kBlocks) * kRows;
  const long long first = cluster * kRows + (kLanes > 0 ? threadIdx.x / kStride : 0);  // row of this thread in the first group
  const float share = 1.0f / static_cast<float>(columns);
  const Arrays arrays = {grad, x, residual};
  float of_weight[kVectors][V] = {}, of_bias[kVectors][V] = {}, next_mean = 0, next_rstd = 0;
  const auto prefetch = [&](long long row) {
    if (row >= rows) return;
    if (Config::kCentred && (Config::kGiven || mean_of != nullptr)) next_mean = widen(mean_of[row]);
    if (Config::kGiven || rstd_of_row != nullptr) next_rstd = widen(rstd_of_row[row]);
  };
  Words* const ring = memory + threadIdx.x;
  const Weights weights = {ring + kStages * kSlot};
  weights.fetch(weight, own, vectors);
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    const long long row = first + s * step;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (row < rows && k < count) arrays.fetch(ring + s * kSlot, k, row * columns + (own + k * kStride) * V);
    }
    copies_commit();
  }
  if constexpr (kAhead) prefetch(first);
  if constexpr (kBlocks > 1) cluster_barrier<kBlocks>();  // every block is there
  int stage = 0, turn = 0;
  for (long long group = cluster * kRows; group < rows; group += step) {
    const long long row = group + (first - cluster * kRows), start = row * columns;
    const int there = kRows == 1 || row < rows ? count : 0;  // who has no row comes along for the company of its warp
    Words* const mine = ring + stage * kSlot;
    Row of;
    of.set(next_mean, next_rstd);
    if constexpr (kAhead) prefetch(row + step);
    copies_wait<kStages - 1>();
    if constexpr (!Config::kGiven) {
      find_statistics(of, mine, there, share, static_cast<float>(eps), rank, kAhead && mean_of != nullptr,
                      kAhead && rstd_of_row != nullptr);
      if constexpr (!kAhead) of.set(mean_of != nullptr ? widen(mean_of[row]) : of.mean, rstd_of_row != nullptr ? widen(rstd_of_row[row]) : of.rstd);
    }
    float average = 0, projection = 0;
    take_row(mine, there, weights, of, of_weight, of_bias, average, projection);
    sum_over_row(average, projection, tables[turn], rank);
    average *= share, projection *= share;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= there) break;
      const int j0 = (own + k * kStride) * V;
      const Pair p(mine, k);
      float w[V], d[V];
      weights.read(w, k);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float h = rounded_product(p.g[j], w[j]);  // rounded, so that a row of one value gives 0
        d[j] = of.rstd * ((Config::kCentred ? h - average : h) - of.u(p.s[j]) * projection);
      }
      if (Config::kAdd && grad_sum != nullptr) {
        const Words more = load_words(grad_sum + start + j0);
#pragma unroll
        for (int j = 0; j < V; ++j) d[j] += element<T>(more, j);
      }
      if (row + kStages * step < rows) arrays.fetch(mine, k, start + kStages * step * columns + j0);
      const Words out = words_of<T>(d);
      store_words(dx + start + j0, out);
      if constexpr (Config::kAdd) store_words(dresidual + start + j0, out);
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
