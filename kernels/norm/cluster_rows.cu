// y[r, :] = (s[r, :] - mean) * rstd * weight + bias with s = x (+ residual); rms norm leaves the mean out.
//
// Layout:  rows of contiguous columns. A cluster of kBlocks blocks owns kRows neighbouring rows; thread t of all its threads owns of each row
//          the vectors t, t + kStride, ..., at most `count`. They are copied to shared memory, to a place where only their own thread looks;
//          every copy is under way before the first is used. One barrier a row: each warp sends its sums to all blocks.
// Needs:   columns a multiple of a vector; pointers aligned to 16 bytes; `count` vectors of shared memory for each array, row and thread;
//          kBlocks > 1 from sm_90 on; not for double.
// Bound:   memory: x (and residual) read once, y (and the sum) written once. weight and bias come from the L2 cache once for kRows rows: once
//          a row, they take as much of its bandwidth as the rows themselves.

#include "dnnarray/spread.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Bias = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 256;
  static constexpr int kRows = 1;
};
#define DNNARRAY_ENTRY norm_cluster_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int V = 16 / sizeof(T), kBlocks = Config::kBlocks, kThreads = Config::kThreads, kRows = Config::kRows, kStride = kBlocks * kThreads;

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
                   const Config::Bias* __restrict__ bias, T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean_of,
                   float* __restrict__ rstd_of_row, long long rows, long long columns, long long count, double eps) {
  __shared__ Spread<T, Config::kCentred, kBlocks, kThreads> spreads[kRows];
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, own = rank * kThreads + threadIdx.x, vectors = static_cast<int>(columns / V);
  const int mine = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long row = blockIdx.x / kBlocks * static_cast<long long>(kRows), start = row * columns + own * V;
  const float share = 1.0f / static_cast<float>(columns);
  const int there = kRows == 1 || rows - row >= kRows ? kRows : static_cast<int>(rows - row);
  const int apart = static_cast<int>(count) * kThreads;  // from row to row, and beyond the rows the residual
  Words *const of_x = memory + threadIdx.x, *const of_residual = of_x + kRows * apart;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= there) break;
#pragma unroll 4
    for (int k = 0; k < mine; ++k) {
      const long long at = start + r * columns + k * (kStride * V);
      copy_async(of_x + r * apart + k * kThreads, x + at);
      if constexpr (Config::kAdd) copy_async(of_residual + r * apart + k * kThreads, residual + at);
    }
    copies_commit();
  }
  Result results[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r == 0 && there == kRows) {
      copies_wait<kRows - 1>();
    } else {
      copies_wait<0>();
    }
    const auto visit = [&](auto f, int limit) {
#pragma unroll 2
      for (int k = 0; k < limit && r < there; ++k) {
        const Values s(of_x + r * apart + k * kThreads, of_residual + r * apart + k * kThreads);
#pragma unroll
        for (int j = 0; j < V; ++j) f(s.at[j]);
      }
    };
    if (kBlocks > 1 && r == 0) cluster_wait();  // every block is there
    Result& to = results[r];
    spreads[r].template find<V>(visit, mine, share, static_cast<float>(eps), rank, to.mean, to.delta, to.rstd);
    if (own == 0 && r < there) {
      if (mean_of != nullptr) mean_of[row + r] = to.mean + to.delta;
      if (rstd_of_row != nullptr) rstd_of_row[row + r] = to.rstd;
    }
  }
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    float w[V], b[V];
#pragma unroll
    for (int j = 0; j < V; ++j) w[j] = 1, b[j] = 0;
    if (weight != nullptr) read_parameter<Config::Weight, V>(w, weight + (own + k * kStride) * V);
    if (bias != nullptr) read_parameter<Config::Bias, V>(b, bias + (own + k * kStride) * V);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= there) break;
      const long long at = start + r * columns + k * (kStride * V);
      Values s(of_x + r * apart + k * kThreads, of_residual + r * apart + k * kThreads);
      if constexpr (Config::kAdd) store_words(sum + at, words_of<T>(s.at));
#pragma unroll
      for (int j = 0; j < V; ++j) s.at[j] = results[r].of(s.at[j], w[j], b[j]);
      store_words(y + at, words_of<T>(s.at));
    }
  }
}
