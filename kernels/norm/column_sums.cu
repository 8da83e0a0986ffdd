// Shares of dweight[j] = sum over rows of grad * u and dbias[j] = sum of grad, with u = (x (+ residual) - mean[r]) *
// rstd[r].
//
// Layout:  rows of contiguous columns. A block owns 32 vectors of columns over `rows_step` rows: thread t the vector t
//          % 32 of every kThreads / 32-th row. Part p of the rows writes dweight[p, :] and dbias[p, :];
//          kernels/norm/fold.cu adds them up.
// Needs:   columns a multiple of kVector; pointers aligned to kVector elements.
// Bound:   memory: grad and x read once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdd = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long rows;
  long long columns;
  long long rows_step;
};
#define DNNARRAY_ENTRY norm_column_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads, kSteps = kThreads / kWarp;

// `mean` is null for rms norm; dweight and dbias where they are not asked for.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ residual,
                   const A* __restrict__ mean, const A* __restrict__ rstd, A* __restrict__ dweight,
                   A* __restrict__ dbias, const __grid_constant__ Arguments a) {
  const long long rows = a.rows, columns = a.columns, rows_step = a.rows_step;
  __shared__ A smem[kThreads];
  let_next_kernel_begin();
  const long long tiles = (columns / kVector + kWarp - 1) / kWarp, part = blockIdx.x / tiles;
  const long long j = (blockIdx.x % tiles * kWarp + threadIdx.x % kWarp) * kVector,
                  end = min((part + 1) * rows_step, rows);
  A of_weight[kVector] = {}, of_bias[kVector] = {};
  if (j < columns) {
#pragma unroll 4
    for (long long r = part * rows_step + threadIdx.x / kWarp; r < end; r += kSteps) {
      const auto g = load<T, kVector>(grad + r * columns + j);
      auto s = load<T, kVector>(x + r * columns + j), more = s;
      if constexpr (Config::kAdd) more = load<T, kVector>(residual + r * columns + j);
      const A centre = mean == nullptr ? A(0) : mean[r], scale = rstd[r];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const A value = Config::kAdd ? widen(s.at[v]) + widen(more.at[v]) : widen(s.at[v]);
        of_weight[v] += widen(g.at[v]) * ((value - centre) * scale);
        of_bias[v] += widen(g.at[v]);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const A w = over_steps<kWarp, kThreads>(of_weight[v], Sum(), smem),
            b = over_steps<kWarp, kThreads>(of_bias[v], Sum(), smem);
    if (j >= columns || threadIdx.x >= kWarp) continue;
    if (dweight != nullptr) dweight[part * columns + j + v] = w;
    if (dbias != nullptr) dbias[part * columns + j + v] = b;
  }
}
