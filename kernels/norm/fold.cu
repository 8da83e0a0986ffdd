// to[j] = sum over p of partial[p, j]: the second half of the gradients of weight (blockIdx.y 0) and bias (blockIdx.y 1).
//
// Layout:  partial is (parts, columns) of the arithmetic dtype. A block owns 32 columns; its rows of threads take every kRows-th part and
//          meet in shared memory, in a fixed order. Sums in double. No parts give 0.
// Bound:   latency; a few megabytes.

#include "dnnarray/norm.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
};
#define DNNARRAY_ENTRY norm_fold_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRows = 32;

// `wide_*` says that the result has the arithmetic dtype, not that of the data; a null result is not asked for.
extern "C" __global__ void __launch_bounds__(kWarp* kRows)
    DNNARRAY_ENTRY(const A* __restrict__ dweight_parts, const A* __restrict__ dbias_parts, void* dweight, void* dbias, long long parts,
                   long long columns, long long wide_weight, long long wide_bias) {
  __shared__ double smem[kRows][kWarp];
  const A* from = blockIdx.y == 0 ? dweight_parts : dbias_parts;
  void* to = blockIdx.y == 0 ? dweight : dbias;
  if (to == nullptr) return;
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp;
  const long long j = static_cast<long long>(blockIdx.x) * kWarp + lane;
  double sum = 0;
  if (j < columns) {
#pragma unroll 8
    for (long long part = first; part < parts; part += kRows) sum += double(from[part * columns + j]);
  }
  smem[first][lane] = sum;
  __syncthreads();
  if (first != 0 || j >= columns) return;
#pragma unroll
  for (int row = 1; row < kRows; ++row) sum += smem[row][lane];
  put<T>(to, blockIdx.y == 0 ? wide_weight != 0 : wide_bias != 0, j, A(sum));
}
