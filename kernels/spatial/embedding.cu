// y[i, :] = weight[indices[i], :]; an index that is no row of the table gives a row of NaN.
//
// Layout:  weight (rows, length) and y (count, length) in C order; a thread owns kCount vectors of kVector elements of
//          y, kThreads apart.
// Needs:   pointers and the length aligned to kVector elements.
// Bound:   memory: y written once, the rows that are named read once.

#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kVector = 4;
  static constexpr int kCount = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  long long vectors;
  long long rows;
};
#define DNNARRAY_ENTRY spatial_embedding_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kCount = Config::kCount;

// `vectors` stand in a row, `total` in y.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Index* __restrict__ indices, const T* __restrict__ weight, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long first = static_cast<long long>(blockIdx.x) * (Config::kThreads * kCount) + threadIdx.x;
  // All indices are asked for before the first row, and all rows before the first is written.
  long long row[kCount];
  int place[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const long long i = first + k * Config::kThreads;
    const Split where = split(i < a.total ? i : a.total - 1, static_cast<int>(a.vectors));
    row[k] = static_cast<long long>(indices[where.quotient]);
    place[k] = where.rest;
  }
  Vec<T, kVector> reg_y[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (row[k] >= 0 && row[k] < a.rows) reg_y[k] = load<T, kVector>(weight + (row[k] * a.vectors + place[k]) * kVector);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (row[k] < 0 || row[k] >= a.rows) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) reg_y[k].at[j] = narrow<T>(A(0) / A(0));
    }
    const long long i = first + k * Config::kThreads;
    if (i < a.total) store(y + i * kVector, reg_y[k]);
  }
}
