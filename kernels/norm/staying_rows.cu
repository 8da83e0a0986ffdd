// y[r, :] = (s[r, :] - mean) * rstd * weight + bias with s = x (+ residual), for long rows; rms norm leaves the mean
// out.
//
// Layout:  rows of contiguous columns. A cluster of kBlocks blocks stays and takes every so-manieth row; thread t of
//          all its threads owns the vectors t, t + kStride, ... of each row, and keeps weight and bias of these in
//          registers. Rows come to one of three places in shared memory, where only their own thread looks. The sums of
//          row i + 1 are taken before those of row i are asked for, so that nobody waits for the other blocks while
//          there is work.
// Needs:   columns a multiple of a vector, at the most kVectors vectors for a thread; pointers aligned to 16 bytes;
//          weight and bias of type T; 3 kVectors vectors of shared memory for each thread; sm_90; not for double; kAdd:
//          T is float.
// Bound:   memory: x (and residual) read once, y (and the sum) written once. Without staying weight and bias come from
//          the L2 as often as x.

#include "norm/row_statistics.cuh"
#include "dnnarray/ptx/opaque.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr int kBlocks = 8;
  static constexpr int kThreads = 512;
  static constexpr int kVectors = 8;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_row;
  long long rows;
  long long columns;
  double eps;
};
#define DNNARRAY_ENTRY norm_staying_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kStride = kBlocks * kThreads;
constexpr int kVectors = Config::kVectors;
constexpr bool kAdd = Config::kAdd;
using Statistics = RowStatistics<T, Config::kCentred, kBlocks, kThreads>;

extern __shared__ __align__(16) Words memory[];

// What a thread has of weight or bias.
struct Kept {
  Words at[kVectors];

  __device__ __forceinline__ Kept(const T* from, int own, int mine, float absent) {
    float same[V];
#pragma unroll
    for (int j = 0; j < V; ++j) same[j] = absent;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      at[k] = words_of<T>(same);
      if (from != nullptr && k < mine) at[k] = load_words(from + (own + k * kStride) * V);
    }
  }
};

// As it comes: the compiler would widen it once for all rows, for which there are no registers.
__device__ __forceinline__ const Words& as_it_comes(Words& words) {
#pragma unroll
  for (int j = 0; j < 4; ++j) opaque(words.at[j]);
  return words;
}

// The rows of a cluster, and what this thread owns of each.
struct Rows {
  long long first, step, count, columns;  // the first row, the distance to the next, how many there are
  int own, mine;

  __device__ __forceinline__ long long start(long long i) const { return (first + i * step) * columns + own * V; }

  // f(k) for each vector that the thread owns; without questions in between where it owns as many as any.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
    if (mine == kVectors) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) f(k);
    } else {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (k < mine) f(k);
      }
    }
  }
  // Row i of an array to a place, as a group of copies, which is empty behind the last row.
  __device__ __forceinline__ void bring(const T* array, long long i, Words* to) const {
    if (i < count) {
      const T* from = array + start(i);
      each([&](int k) { cp_async_cg(to + k * kThreads, from + k * (kStride * V)); });
    }
    cp_async_commit_group();
  }
  // s of row i in place of x, and to memory.
  __device__ __forceinline__ void add(long long i, Words* x, const Words* residual, T* sum) const {
    T* const to = sum + start(i);
    each([&](int k) {
      const Words a = x[k * kThreads], b = residual[k * kThreads];
      float s[V];
#pragma unroll
      for (int j = 0; j < V; ++j) s[j] = element<T>(a, j) + element<T>(b, j);
      x[k * kThreads] = words_of<T>(s);
      store_words(to + k * (kStride * V), words_of<T>(s));
    });
  }
  __device__ __forceinline__ Statistics::Part sums(const Words* x) const {
    const auto visit = [&](auto f, int limit) {
      const auto vector = [&](int k) {
        const Words words = x[k * kThreads];
#pragma unroll
        for (int j = 0; j < V; ++j) f(element<T>(words, j));
      };
      if (limit == mine) {
        each(vector);
      } else {
        vector(0);  // the only other number that is asked for
      }
    };
    return Statistics::sums<V>(visit, mine);
  }
};

// Null: residual, weight, bias, sum, mean_of and rstd_of_row where absent.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ weight,
                   const T* __restrict__ bias, T* __restrict__ y, T* __restrict__ sum,
                   const __grid_constant__ Arguments a) {
  float *const mean_of = a.mean_of, *const rstd_of_row = a.rstd_of_row;
  const long long columns = a.columns;
  const double eps = a.eps;
  __shared__ Statistics statistics[2];
  cluster_arrive();
  const int rank = blockIdx.x % kBlocks, own = rank * kThreads + threadIdx.x, vectors = static_cast<int>(columns / V);
  const int mine = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long first = blockIdx.x / kBlocks, step = gridDim.x / kBlocks;
  const Rows rows = {first, step, (a.rows - first + step - 1) / step, columns, own, mine};
  const float share = 1.0f / static_cast<float>(columns);
  // The places of the row that is written, of the one whose sums are under way, and of the one after. kAdd: the
  // residual of a row comes to the place behind that of x, which is free as soon as the sum of the two is there.
  Words *here = memory + threadIdx.x, *next = here + kVectors * kThreads, *last = next + kVectors * kThreads;
  rows.bring(x, 0, here);
  rows.bring(kAdd ? residual : x, kAdd ? 0 : 1, next);
  if constexpr (!kAdd) rows.bring(x, 2, last);
  Kept w(weight, own, mine, 1.0f);
  Kept b(Config::kCentred ? bias : nullptr, own, mine, 0.0f);  // rms norm has none
  // The sums of row i, whose arrays have come; `behind` is the place behind its own.
  const auto taken = [&](long long i, Words* place, Words* behind) {
    if constexpr (kAdd) {
      rows.add(i, place, behind, sum);
      rows.bring(x, i + 1, behind);
    }
    return rows.sums(place);
  };
  cp_async_wait_group<kAdd ? 0 : 2>();
  Statistics::Part part = taken(0, here, next);
  cluster_wait();  // every block is there
  statistics[0].send(part, rank);
  cluster_arrive();
  if constexpr (kAdd) rows.bring(residual, 1, last);
  for (long long i = 0; i < rows.count; ++i) {
    const bool more = i + 1 < rows.count;
    if (more) {
      cp_async_wait_group<kAdd ? 0 : 1>();
      part = taken(i + 1, next, last);
    }
    cluster_wait();  // the sums of row i are there
    float mean, delta, rstd;
    Statistics::result(statistics[i % 2].gathered(), share, static_cast<float>(eps), mean, delta, rstd);
    if (more) {
      statistics[(i + 1) % 2].send(
          part, rank);  // whose last reader was there before it arrived at the barrier that has just been waited for
      cluster_arrive();
    }
    if (own == 0) {
      if (mean_of != nullptr) mean_of[first + i * step] = mean + delta;
      if (rstd_of_row != nullptr) rstd_of_row[first + i * step] = rstd;
    }
    T* const to = y + rows.start(i);
    rows.each([&](int k) {
      const Words words = here[k * kThreads], factor = as_it_comes(w.at[k]);
      const Words term = Config::kCentred ? as_it_comes(b.at[k]) : Words{};
      float value[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        value[j] = element<T>(words, j);
        value[j] = sizeof(T) == 2 ? value[j] - (mean + delta) : (value[j] - mean) - delta;
        value[j] = value[j] * (rstd * element<T>(factor, j)) + (Config::kCentred ? element<T>(term, j) : 0.0f);
      }
      store_words(to + k * (kStride * V), words_of<T>(value));
    });
    rows.bring(kAdd ? residual : x, i + (kAdd ? 2 : 3), here);
    Words* const written = here;
    here = next, next = last, last = written;
  }
}
