// dx[r, :] = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s -
// mean) * rstd; rms norm leaves average(h) out. Beside it each cluster's share of dweight = sum(grad * u) and dbias =
// sum(grad) over its rows.
//
// Layout:  rows of contiguous columns. Clusters of kBlocks blocks stay resident and step over groups of rows: one row
//          that all threads of the cluster share, or, with kLanes, a row for each kLanes threads of a block. Thread t
//          of a row owns its vectors t, t + kStride, ..., kVectors at the most: of the rows, which are copied to shared
//          memory kStages groups ahead, to a place where only their own thread looks, and of the running sums of
//          dweight and dbias, in registers. A shared row takes one barrier (two where the statistics were not saved):
//          each warp sends its sums to all blocks. A row of kLanes, within a warp, needs none. With kSplit a cluster
//          does not wait at that barrier: the sums of a row are under way while the gradient of the row before is
//          written and the next row is summed up, for which three rows are on the chip, and the weight as it came. With
//          kFold such blocks (then kBlocks is 1) are a cluster that adds up its blocks' sums at the end. Cluster c
//          writes them to dweight[c, :] and dbias[c, :]; kernels/norm/fold.cu adds them up in a fixed order.
// Needs:   columns a multiple of a vector and at most kStride kVectors vectors; pointers aligned to 16 bytes; shared
//          memory for kStages groups of rows and the weight as float (kSplit: as it is); kBlocks > 1 and kFold > 1 from
//          sm_90 on; not for double.
// Bound:   memory: grad and x read once, dx written once.

#include "dnnarray/core/overlap.cuh"
#include "norm/row_statistics.cuh"

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
  static constexpr int kLanes = 0;
  static constexpr int kBlocks = 1;
  static constexpr int kFold = 1;
  static constexpr int kThreads = 512;
  static constexpr int kVectors = 4;
  static constexpr int kStages = 1;
  static constexpr int kResident = 2;
  static constexpr bool kSplit = false;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* x;
  const Config::Element* residual;
  dnnarray::arithmetic_t<Config::Element>* dweight;
  dnnarray::arithmetic_t<Config::Element>* dbias;
  long long rows;
  long long columns;
  double eps;
};
#define DNNARRAY_ENTRY norm_cluster_rows_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kVectors = Config::kVectors;
constexpr int kLanes = Config::kLanes, kStride = kLanes > 0 ? kLanes : kBlocks * kThreads,
              kRows = kLanes > 0 ? kThreads / kLanes : 1;
constexpr int kFold = Config::kFold, kStages = Config::kStages, kArrays = Config::kAdd ? 3 : 2,
              kSlot = kArrays * kVectors * kThreads;
constexpr bool kHalf = sizeof(T) == 2, kSplit = Config::kSplit;
static_assert(!kSplit || (Config::kGiven && kBlocks > 1 && kStages == 3),
              "rows of a cluster whose statistics were saved");
static_assert(kBlocks == 1 || kFold == 1, "a cluster shares a row, or the sums of its blocks' rows");
constexpr bool kBias = Config::kCentred && Config::kParameters;
// Saved statistics come a row ahead, unless the sums of two vectors and the search for those that were not saved fill
// the 64 registers.
constexpr bool kAhead =
    Config::kGiven || kHalf || !kBias || !Config::kAdd || kThreads * Config::kResident < 1024 || kVectors < 2;

extern __shared__ __align__(16) Words memory[];

struct Arrays {
  const T *grad, *x, *residual;

  // Vector k of this thread in a row, the first of which is `at`, to its place in shared memory.
  __device__ __forceinline__ void fetch(Words* to, int k, long long at) const {
    cp_async_cg(to + (0 * kVectors + k) * kThreads, grad + at + k * kStride * V);
    cp_async_cg(to + (1 * kVectors + k) * kThreads, x + at + k * kStride * V);
    if constexpr (Config::kAdd) cp_async_cg(to + (2 * kVectors + k) * kThreads, residual + at + k * kStride * V);
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

// This thread's vectors of the weight, widened once (but with kSplit), which stay in shared memory behind the rows:
// from L2, each row's share of it would cost as much as x, and to widen it for every row two more operations an
// element.
template <bool kNarrow>
struct KeptAs {
  using type = float;
};
template <>
struct KeptAs<true> {
  using type = Config::Weight;
};
struct Weights {
  using Kept = KeptAs<kSplit>::type;
  static constexpr int kEach = 16 / sizeof(Kept), kWords = V / kEach;
  Words* kept;

  __device__ __forceinline__ void fetch(const Config::Weight* weight, int own, int vectors) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = own + k * kStride;
      if (i >= vectors) break;
      float w[V];
#pragma unroll
      for (int j = 0; j < V; ++j) w[j] = 1.0f;
      if (weight != nullptr) read_parameter<Config::Weight, V>(w, weight + i * V);
#pragma unroll
      for (int part = 0; part < kWords; ++part) {
        float piece[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) piece[j] = w[kEach * part + j];
        kept[(k * kWords + part) * kThreads] = words_of<Kept>(piece);
      }
    }
  }
  __device__ __forceinline__ void read(float (&to)[V], int k) const {
#pragma unroll
    for (int part = 0; part < kWords; ++part) {
      const Words words = load_again(kept + (k * kWords + part) * kThreads);
#pragma unroll
      for (int j = 0; j < kEach; ++j) to[kEach * part + j] = element<Kept>(words, j);
    }
  }
};

// Two sums over the threads of a row; rms norm needs the second only.
using Table = Gathered<kBlocks, kThreads, 2>;

__device__ __forceinline__ void sum_over_warp(float& average, float& projection) {
  constexpr int kTogether = kLanes > 0 ? kLanes : kWarp;
  if constexpr (Config::kCentred) {
    warp_sum_both<kTogether>(average, projection);
  } else {
    projection = warp_sum<kTogether>(projection);
  }
}

// From the sums of all warps.
__device__ __forceinline__ void sum_over_table(float& average, float& projection, const Table& table) {
  if constexpr (Config::kCentred) {
    table.sum_both(average, projection);
  } else {
    projection = Table::reduce(Sum(), [&](int i) { return table.at[1][i]; });
  }
}

// A statistic of the next row, on its way. Of a row that all threads share one lane fetches it: a value that is the
// same in all lanes the compiler moves to a uniform register, for which it waits at once, a whole latency for every
// row.
template <typename P, int kLane, bool kWanted>
struct Saved {
  const P* from;
  float value = 0;

  __device__ __forceinline__ explicit Saved(const P* p) : from(p) {}
  __device__ __forceinline__ void fetch(long long row) {
    if constexpr (!kWanted) return;
    if ((Config::kGiven || from != nullptr) && (kLanes > 0 || threadIdx.x % kWarp == kLane)) value = widen(from[row]);
  }
  __device__ __forceinline__ float get() const { return kLanes > 0 ? value : __shfl_sync(kAllLanes, value, kLane); }
};

// A row's mean and rstd, and u = (s - mean) * rstd; for half types in one operation, whose rounding is far below that
// of s.
struct Row {
  float mean, rstd, shift;

  __device__ __forceinline__ void set(float m, float r) { mean = m, rstd = r, shift = -m * r; }
  __device__ __forceinline__ float u(float s) const {
    if constexpr (!Config::kCentred) return s * rstd;
    return kHalf ? s * rstd + shift : (s - mean) * rstd;
  }
};

// rstd * (h - average - u * projection); for half types as a straight line in s, like u.
struct Line {
  Row row;
  float average, projection, slope, level;

  __device__ __forceinline__ Line(const Row& of, float a, float p)
      : row(of), average(a), projection(p), slope(-of.rstd * of.rstd * p), level(-(slope * of.mean) - of.rstd * a) {}
  __device__ __forceinline__ float gradient(float h, float s) const {
    if constexpr (kHalf) return h * row.rstd + (Config::kCentred ? s * slope + level : s * slope);
    return row.rstd * ((Config::kCentred ? h - average : h) - row.u(s) * projection);
  }
};

// The thread's `count` vectors of a row at `from` go into the running sums and into those of the row, which become
// those of the warp.
__device__ __forceinline__ void take_row(const Words* from, int count, const Weights& weights, const Row& row,
                                         float (&of_weight)[kVectors][V], float (&of_bias)[kVectors][V], float& average,
                                         float& projection) {
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
  sum_over_warp(average, projection);
}

// The statistics that were not saved.
__device__ __forceinline__ void find_statistics(Row& row, const Words* from, int count, float share, float eps,
                                                int rank, bool has_mean, bool has_rstd) {
  __shared__ RowStatistics<T, Config::kCentred, kBlocks, kThreads, kLanes> spread;
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

// of(0) + of(1) + ... + of(kCount - 1); up to eight are under way before the first is used.
template <int kCount, typename Of>
__device__ __forceinline__ Vec<float, 4> sum_four(Of of) {
  constexpr int kFlight = kCount < 8 ? kCount : 8;
  Vec<float, 4> total = {}, terms[kFlight];
#pragma unroll
  for (int start = 0; start < kCount; start += kFlight) {
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (start + i < kCount) terms[i] = of(start + i);
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v)
        if (start + i < kCount) total.at[v] += terms[i].at[v];
    }
  }
  return total;
}

// f(column, four sums) for the columns of this thread.
template <typename F>
__device__ __forceinline__ void each_four(const float (&sums)[kVectors][V], int own, int vectors, F f) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int i = own + k * kStride;
    if (i >= vectors) break;
#pragma unroll
    for (int j = 0; j < V; j += 4)
      f(i * V + j, Vec<float, 4>{sums[k][j], sums[k][j + 1], sums[k][j + 2], sums[k][j + 3]});
  }
}

// The shares of a block, or of a cluster, each null where nobody asks for it. The rows of a block (kLanes) and the sums
// of the kFold blocks of a cluster are added up before, in the shared memory that rows and weight leave.
__device__ __forceinline__ void write_shares(float* dweight, float* dbias, const float (&of_weight)[kVectors][V],
                                             const float (&of_bias)[kVectors][V], int own, int vectors) {
  constexpr int kSums = kBias ? 2 : 1;
  const int columns = vectors * V;
  const auto put_columns = [&](int s, int j, const Vec<float, 4>& four) {
    float* const share = s == 0 ? dweight : dbias;
    if (share != nullptr) store(share + j, four);
  };
  if constexpr (kLanes == 0 && kFold == 1) {
    each_four(of_weight, own, vectors, [&](int j, const Vec<float, 4>& four) { put_columns(0, j, four); });
    if constexpr (kBias)
      each_four(of_bias, own, vectors, [&](int j, const Vec<float, 4>& four) { put_columns(1, j, four); });
  } else {
    float* const together = reinterpret_cast<float*>(memory);  // [sum][row of the block][column]
    const int row = kLanes > 0 ? threadIdx.x / kStride : 0;
    __syncthreads();
    each_four(of_weight, own, vectors,
              [&](int j, const Vec<float, 4>& four) { store(together + row * columns + j, four); });
    if constexpr (kBias)
      each_four(of_bias, own, vectors,
                [&](int j, const Vec<float, 4>& four) { store(together + (kRows + row) * columns + j, four); });
    __syncthreads();
    if constexpr (kRows > 1) {
      for (int j = threadIdx.x * 4; j < columns; j += kThreads * 4) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) {
          float* const here = together + s * kRows * columns + j;
          const auto total = sum_four<kRows>([&](int r) { return load<float, 4>(here + r * columns); });
          if constexpr (kFold == 1) {
            put_columns(s, j, total);
          } else {
            store(here, total);
          }
        }
      }
    }
    if constexpr (kFold > 1) {
      cluster_barrier<kFold>();
      for (int j = (blockIdx.x % kFold * kThreads + threadIdx.x) * 4; j < columns; j += kFold * kThreads * 4) {
#pragma unroll
        for (int s = 0; s < kSums; ++s)
          put_columns(
              s, j, sum_four<kFold>([&](int block) { return load_remote(together + s * kRows * columns + j, block); }));
      }
      cluster_arrive_and_wait_relaxed();  // nobody leaves while others read
    }
  }
}

// Null: grad_sum, residual, weight, dresidual, dweight and dbias where absent, mean_of and rstd_of_row too without
//       kGiven.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks* kFold) __launch_bounds__(kThreads, Config::kResident)
    DNNARRAY_ENTRY(const T* __restrict__ grad_sum, const Config::Weight* __restrict__ weight,
                   const Config::Mean* __restrict__ mean_of, const Config::Rstd* __restrict__ rstd_of_row,
                   T* __restrict__ dx, T* __restrict__ dresidual, const __grid_constant__ Arguments a) {
  const T *const grad = a.grad, *const x = a.x, *const residual = a.residual;
  float *const dweight = a.dweight, *const dbias = a.dbias;
  const long long rows = a.rows, columns = a.columns;
  const double eps = a.eps;
  __shared__ Table tables[kLanes > 0 ? 1 : 2];
  let_next_kernel_begin();
  const int rank = blockIdx.x % kBlocks, own = kLanes > 0 ? threadIdx.x % kStride : rank * kThreads + threadIdx.x;
  const int vectors = static_cast<int>(columns / V),
            count = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long step = static_cast<long long>(gridDim.x / kBlocks) * kRows, pitch = step * columns;
  const long long leader = static_cast<long long>(blockIdx.x / kBlocks) * kRows;  // the first row of a group
  const float share = 1.0f / static_cast<float>(columns);
  const Arrays arrays = {grad, x, residual};
  float of_weight[kVectors][V] = {}, of_bias[kVectors][V] = {};
  Saved<Config::Mean, 0, Config::kCentred> next_mean(mean_of);
  Saved<Config::Rstd, 1, true> next_rstd(rstd_of_row);
  const auto prefetch = [&](long long row) {
    if (row < rows) next_mean.fetch(row), next_rstd.fetch(row);
  };
  Words* const ring = memory + threadIdx.x;
  const Weights weights = {ring + kStages * kSlot};
  long long row = leader + (kLanes > 0 ? threadIdx.x / kStride : 0),
            at = row * columns + own * V;  // this thread's row and first element
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (row + s * step < rows && k < count) arrays.fetch(ring + s * kSlot, k, at + s * pitch);
    }
    cp_async_commit_group();
  }
  weights.fetch(weight, own, vectors);
  if constexpr (kAhead) prefetch(row);
  if constexpr (kBlocks > 1) cluster_barrier<kBlocks>();  // every block is there
  int stage = 0, turn = 0;
  Row next;  // kSplit: the next row, and the sums of this warp over it
  float next_average = 0, next_projection = 0;
  const auto begin = [&](int at_stage, long long behind) {
    next.set(next_mean.get(), next_rstd.get());
    prefetch(behind);
    next_average = 0, next_projection = 0;
    take_row(ring + at_stage * kSlot, count, weights, next, of_weight, of_bias, next_average, next_projection);
  };
  const auto send = [&] { tables[turn].put({next_average, next_projection}, rank), cluster_arrive(); };
  if constexpr (kSplit) {
    cp_async_wait_group<kStages - 1>();
    if (leader < rows) begin(0, row + step), send();
  }
  for (long long group = leader; group < rows; group += step, row += step, at += pitch) {
    const int there = kRows == 1 || row < rows ? count : 0;  // who has no row comes along for the company of its warp
    Words* const mine = ring + stage * kSlot;
    Row of;
    float average = 0, projection = 0;
    if constexpr (kSplit) {
      of = next;
      cp_async_wait_group<kStages - 2>();
      if (row + step < rows) begin(stage + 1 == kStages ? 0 : stage + 1, row + 2 * step);
      cluster_wait();
      sum_over_table(average, projection, tables[turn]);
      turn ^= 1;
      if (row + step < rows) send();
    } else {
      of.set(next_mean.get(), next_rstd.get());
      if constexpr (kAhead) prefetch(row + step);
      cp_async_wait_group<kStages - 1>();
      if constexpr (!Config::kGiven) {
        find_statistics(of, mine, there, share, static_cast<float>(eps), rank, kAhead && mean_of != nullptr,
                        kAhead && rstd_of_row != nullptr);
        if constexpr (!kAhead)
          of.set(mean_of != nullptr ? widen(mean_of[row]) : of.mean,
                 rstd_of_row != nullptr ? widen(rstd_of_row[row]) : of.rstd);
      }
      take_row(mine, there, weights, of, of_weight, of_bias, average, projection);
      if constexpr (kLanes == 0) {
        tables[turn].put({average, projection}, rank);
        cluster_barrier<kBlocks>();
        sum_over_table(average, projection, tables[turn]);
        turn ^= 1;
      }
    }
    const Line line(of, average * share, projection * share);
    const bool more_rows = row + kStages * step < rows;
    const long long ahead = at + kStages * pitch;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= there) break;
      const long long here = at + k * kStride * V;
      const Pair p(mine, k);
      float w[V], d[V];
      weights.read(w, k);
#pragma unroll
      for (int j = 0; j < V; ++j)
        d[j] = line.gradient(rounded_product(p.g[j], w[j]), p.s[j]);  // rounded, so that a row of one value gives 0
      if (Config::kAdd && grad_sum != nullptr) {
        const Words more = load_words(grad_sum + here);
#pragma unroll
        for (int j = 0; j < V; ++j) d[j] += element<T>(more, j);
      }
      if (more_rows) arrays.fetch(mine, k, ahead);
      const Words out = words_of<T>(d);
      store_words(dx + here, out);
      if constexpr (Config::kAdd) store_words(dresidual + here, out);
    }
    cp_async_commit_group();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  if constexpr (Config::kParameters) {
    cp_async_wait_group<0>();
    const long long start = blockIdx.x / (kBlocks * kFold) * columns;
    write_shares(dweight != nullptr ? dweight + start : nullptr, dbias != nullptr ? dbias + start : nullptr, of_weight,
                 of_bias, own, vectors);
  }
}
