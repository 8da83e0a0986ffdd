// to[j] = sum over p of partial[p, j]: the second half of the gradients of weight (blockIdx.y 0) and bias (blockIdx.y
// 1).
//
// Layout:  partial is (parts, columns) of the arithmetic dtype. A block owns 32 vectors of columns; its warps take
//          every kRows-th part and meet in shared memory, in a fixed order: four parts of a warp as they are, those
//          sums in double. No parts give 0.
// Needs:   columns a multiple of kVector; partial aligned to kVector elements.
// Bound:   latency: a few megabytes, from the L2 cache where they were just written. Vectors of one element took two to
//          six times as long for 4096 to 131072 columns, H200, 2026-11-21.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kVector = 4;
  static constexpr int kRows = 32;
};
struct Arguments {
  void* dweight;
  void* dbias;
  long long parts;
  long long columns;
  long long wide_weight;
  long long wide_bias;
};
#define DNNARRAY_ENTRY norm_fold_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int V = Config::kVector, kRows = Config::kRows;
constexpr int kTogether =
    4;  // parts that meet before they are widened, with their loads under way together: conversions to double are slow

// `wide_*` says that the result has the arithmetic dtype, not that of the data; a null result is not asked for.
extern "C" __global__ void __launch_bounds__(kWarp* kRows, kRows > 8 ? 1 : 0)
    DNNARRAY_ENTRY(const A* __restrict__ dweight_parts, const A* __restrict__ dbias_parts,
                   const __grid_constant__ Arguments a) {
  void *const dweight = a.dweight, *const dbias = a.dbias;
  const long long parts = a.parts, columns = a.columns, wide_weight = a.wide_weight, wide_bias = a.wide_bias;
  __shared__ double smem[kRows][kWarp * V];
  const A* from = after_previous_kernel(blockIdx.y == 0 ? dweight_parts : dbias_parts);
  void* to = blockIdx.y == 0 ? dweight : dbias;
  if (to == nullptr) return;
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp;
  const long long start = static_cast<long long>(blockIdx.x) * (kWarp * V), j = start + lane * V;
  double sums[V] = {};
  if (j < columns) {
#pragma unroll 2
    for (long long part = first; part < parts; part += kRows * kTogether) {
      Vec<A, V> shares[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        shares[k] = {};
        if (part + k * kRows < parts) shares[k] = load<A, V>(from + (part + k * kRows) * columns + j);
      }
#pragma unroll
      for (int v = 0; v < V; ++v)
        sums[v] += static_cast<double>((shares[0].at[v] + shares[2].at[v]) + (shares[1].at[v] + shares[3].at[v]));
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) smem[first][lane * V + v] = sums[v];
  __syncthreads();
  for (int own = threadIdx.x; own < kWarp * V && start + own < columns; own += kWarp * kRows) {
    double sum = smem[0][own];
#pragma unroll
    for (int row = 1; row < kRows; ++row) sum += smem[row][own];
    put<T>(to, blockIdx.y == 0 ? wide_weight != 0 : wide_bias != 0, start + own, static_cast<A>(sum));
  }
}
