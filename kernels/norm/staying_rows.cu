// y[r, :] = (s[r, :] - mean) * rstd * weight + bias with s = x (+ residual), for long rows; rms norm leaves the mean out.
//
// Layout:  rows of contiguous columns. A cluster of kBlocks blocks stays and takes every so-manieth row; thread t of all its threads owns the
//          vectors t, t + kStride, ... of each row, and keeps weight and bias of these in registers. Rows come to one of three places in shared
//          memory, where only their own thread looks. The sums of row i + 1 are taken before those of row i are asked for, so that nobody
//          waits for the other blocks while there is work.
// Needs:   columns a multiple of a vector, at the most kVectors vectors for a thread; pointers aligned to 16 bytes; weight and bias of type T;
//          3 kVectors vectors of shared memory for each thread; sm_90; not for double; kAdd: T is float.
// Bound:   memory: x (and residual) read once, y (and the sum) written once. Without staying weight and bias come from the L2 as often as x.

#include "dnnarray/spread.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr int kBlocks = 8;
  static constexpr int kThreads = 512;
  static constexpr int kVectors = 8;
};
#define DNNARRAY_ENTRY norm_staying_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kStride = kBlocks * kThreads;
constexpr int kVectors = Config::kVectors, kPlaces = 3;
constexpr bool kAdd = Config::kAdd;
using Statistics = Spread<T, Config::kCentred, kBlocks, kThreads>;

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
  for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(words.at[j]));
  return words;
}

// The rows of a cluster, and what this thread owns of each.
struct Rows {
  long long first, step, count, columns;  // the first row, the distance to the next, how many there are
  int own, mine;

  __device__ __forceinline__ long long start(long long i) const { return (first + i * step) * columns + own * V; }
  static __device__ __forceinline__ Words* place(long long i) { return memory + static_cast<int>(i % kPlaces) * (kVectors * kThreads) + threadIdx.x; }

  // Row i of an array to a place, as a group of copies, which is empty behind the last row.
  __device__ __forceinline__ void bring(const T* array, long long i, Words* to) const {
    if (i < count) {
      const T* from = array + start(i);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (k < mine) copy_async(to + k * kThreads, from + k * (kStride * V));
      }
    }
    copies_commit();
  }
  // s of row i in place of x, and to memory.
  __device__ __forceinline__ void add(long long i, const Words* residual, T* sum) const {
    Words* const x = place(i);
    T* const to = sum + start(i);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= mine) break;
      const Words a = x[k * kThreads], b = residual[k * kThreads];
      float s[V];
#pragma unroll
      for (int j = 0; j < V; ++j) s[j] = element<T>(a, j) + element<T>(b, j);
      x[k * kThreads] = words_of<T>(s);
      store_words(to + k * (kStride * V), words_of<T>(s));
    }
  }
  __device__ __forceinline__ Statistics::Part sums(long long i) const {
    const Words* const x = place(i);
    const auto visit = [&](auto f, int limit) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (k >= limit) break;
        const Words words = x[k * kThreads];
#pragma unroll
        for (int j = 0; j < V; ++j) f(element<T>(words, j));
      }
    };
    return Statistics::sums<V>(visit, mine);
  }
};

// Null: residual, weight, bias, sum, mean_of and rstd_of_row where absent.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ weight,
                   const T* __restrict__ bias, T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean_of,
                   float* __restrict__ rstd_of_row, long long all_rows, long long columns, double eps) {
  __shared__ Statistics statistics[2];
  cluster_arrive();
  const int rank = blockIdx.x % kBlocks, own = rank * kThreads + threadIdx.x, vectors = static_cast<int>(columns / V);
  const int mine = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long first = blockIdx.x / kBlocks, step = gridDim.x / kBlocks;
  const Rows rows = {first, step, (all_rows - first + step - 1) / step, columns, own, mine};
  const float share = 1.0f / static_cast<float>(columns);
  // Row i lies in place i % 3. kAdd: its residual comes to the place behind it, which is free as soon as the sum of the two is there.
  rows.bring(x, 0, rows.place(0));
  rows.bring(kAdd ? residual : x, kAdd ? 0 : 1, rows.place(1));
  if constexpr (!kAdd) rows.bring(x, 2, rows.place(2));
  Kept w(weight, own, mine, 1.0f);
  Kept b(Config::kCentred ? bias : nullptr, own, mine, 0.0f);  // rms norm has none
  // The sums of row i, whose arrays have come by the time that kPending later groups are under way.
  const auto taken = [&](long long i) {
    if constexpr (kAdd) {
      rows.add(i, rows.place(i + 1), sum);
      rows.bring(x, i + 1, rows.place(i + 1));
    }
    return rows.sums(i);
  };
  copies_wait<kAdd ? 0 : 2>();
  Statistics::Part next = taken(0);
  cluster_wait();  // every block is there
  statistics[0].send(next, rank);
  cluster_arrive();
  if constexpr (kAdd) rows.bring(residual, 1, rows.place(2));
  for (long long i = 0; i < rows.count; ++i) {
    const bool more = i + 1 < rows.count;
    if (more) {
      copies_wait<kAdd ? 0 : 1>();
      next = taken(i + 1);
    }
    cluster_wait();  // the sums of row i are there
    float mean, delta, rstd;
    Statistics::result(statistics[i % 2].gathered(), share, static_cast<float>(eps), mean, delta, rstd);
    if (more) {
      statistics[(i + 1) % 2].send(next, rank);  // whose last reader was there before it arrived at the barrier that has just been waited for
      cluster_arrive();
    }
    if (own == 0) {
      if (mean_of != nullptr) mean_of[first + i * step] = mean + delta;
      if (rstd_of_row != nullptr) rstd_of_row[first + i * step] = rstd;
    }
    const Words* const s = rows.place(i);
    T* const to = y + rows.start(i);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k >= mine) break;
      const Words words = s[k * kThreads], factor = as_it_comes(w.at[k]);
      const Words term = Config::kCentred ? as_it_comes(b.at[k]) : Words{};
      float value[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        value[j] = element<T>(words, j);
        value[j] = sizeof(T) == 2 ? value[j] - (mean + delta) : (value[j] - mean) - delta;
        value[j] = value[j] * (rstd * element<T>(factor, j)) + (Config::kCentred ? element<T>(term, j) : 0.0f);
      }
      store_words(to + k * (kStride * V), words_of<T>(value));
    }
    rows.bring(kAdd ? residual : x, i + (kAdd ? 2 : 3), rows.place(i));
  }
}
