// out[p, j] = sum of x[r, j], or of x[r, j] * y[r, j], over the rows r of part p. Two launches in a row give the sums
// of all rows in a fixed order.
//
// Layout:  a thread owns one column of one part (blockIdx.y) of `part` rows; neighbouring threads neighbouring columns.
// Bound:   memory: x and y read once.

#include "dnnarray/core/dtype.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Target = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long columns;
  long long x_row;
  long long y_row;
  long long part;
};
#define DNNARRAY_ENTRY rnn_column_sums_default
#endif

using namespace dnnarray;
using S = Config::Source;
using T = Config::Target;

// `y` is null where there is no product.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const S* __restrict__ x, const S* __restrict__ y, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const long long j = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (j >= a.columns) return;
  const long long first = blockIdx.y * a.part, last = first + a.part < a.rows ? first + a.part : a.rows;
  S sum = 0;
#pragma unroll 4
  for (long long r = first; r < last; ++r)
    sum += y == nullptr ? x[r * a.x_row + j] : x[r * a.x_row + j] * y[r * a.y_row + j];
  out[blockIdx.y * a.columns + j] = narrow<T>(sum);
}
