// y[r, :] = (s[r, :] - mean) * rstd * weight + bias with s = x (+ residual); rms norm leaves the mean out.
//
// Layout:  rows of contiguous columns. A cluster of kBlocks blocks owns a row; thread t of all its threads owns the
//          vectors t, t + kStride, ..., at most `count`. They are copied to shared memory, to a place where only their
//          own thread looks; every copy is under way before the first is used. One barrier: each warp sends its sums to
//          all blocks.
// Needs:   columns a multiple of a vector; pointers aligned to 16 bytes; `count` vectors of shared memory for each
//          array and thread; kBlocks > 1 from sm_90 on; not for double.
// Bound:   memory: x (and residual) read once, y (and the sum) written once. weight and bias come from the L2 cache for
//          every row. Two rows for each block, or blocks that stay and keep weight and bias, were slower: fewer blocks,
//          whose phases follow one another.

#include "norm/row_statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Bias = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 256;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_row;
  long long columns;
  long long count;
  double eps;
};
#define DNNARRAY_ENTRY norm_cluster_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kStride = kBlocks * kThreads;

extern __shared__ __align__(16) Words memory[];

// The values of a vector, of x (+ residual).
struct Values {
  float at[V];

  __device__ __forceinline__ Values(const Words* of_x, const Words* of_residual) {
    const Words wx = *of_x, wr = Config::kAdd ? *of_residual : wx;
#pragma unroll
    for (int j = 0; j < V; ++j) at[j] = Config::kAdd ? element<T>(wx, j) + element<T>(wr, j) : element<T>(wx, j);
  }
};

struct Result {
  float mean, delta, rstd;  // the mean in two parts, which matters where T is exact enough to tell

  __device__ __forceinline__ float of(float s, float w, float b) const {
    return (sizeof(T) == 2 ? s - (mean + delta) : (s - mean) - delta) * (rstd * w) + b;
  }
};

// Null: residual, weight, bias, sum, mean_of and rstd_of_row where absent.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, const Config::Weight* __restrict__ weight,
                   const Config::Bias* __restrict__ bias, T* __restrict__ y, T* __restrict__ sum,
                   const __grid_constant__ Arguments a) {
  __shared__ RowStatistics<T, Config::kCentred, kBlocks, kThreads> spread;
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, own = rank * kThreads + threadIdx.x, vectors = static_cast<int>(a.columns / V);
  const int mine = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long row = blockIdx.x / kBlocks, start = row * a.columns + own * V;
  Words *const of_x = memory + threadIdx.x, *const of_residual = of_x + a.count * kThreads;
#pragma unroll 4
  for (int k = 0; k < mine; ++k) {
    cp_async_cg(of_x + k * kThreads, x + start + k * (kStride * V));
    if constexpr (Config::kAdd) cp_async_cg(of_residual + k * kThreads, residual + start + k * (kStride * V));
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();
  const auto visit = [&](auto f, int limit) {
#pragma unroll 2
    for (int k = 0; k < limit; ++k) {
      const Values s(of_x + k * kThreads, of_residual + k * kThreads);
#pragma unroll
      for (int j = 0; j < V; ++j) f(s.at[j]);
    }
  };
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  Result result;
  const float share = 1.0f / static_cast<float>(a.columns);
  spread.template find<V>(visit, mine, share, static_cast<float>(a.eps), rank, result.mean, result.delta, result.rstd);
  if (own == 0) {
    if (a.mean_of != nullptr) a.mean_of[row] = result.mean + result.delta;
    if (a.rstd_of_row != nullptr) a.rstd_of_row[row] = result.rstd;
  }
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    const int column = (own + k * kStride) * V;
    float w[V], b[V];
#pragma unroll
    for (int j = 0; j < V; ++j) w[j] = 1, b[j] = 0;
    if (weight != nullptr) read_parameter<Config::Weight, V>(w, weight + column);
    if (bias != nullptr) read_parameter<Config::Bias, V>(b, bias + column);
    Values s(of_x + k * kThreads, of_residual + k * kThreads);
    if constexpr (Config::kAdd) store_words(sum + row * a.columns + column, words_of<T>(s.at));
#pragma unroll
    for (int j = 0; j < V; ++j) s.at[j] = result.of(s.at[j], w[j], b[j]);
    store_words(y + row * a.columns + column, words_of<T>(s.at));
  }
}
