// grid[n, place] = theta[n] @ (x, y[, z], 1).
//
// Layout:  theta (N, kRank, kRank + 1), grid (N, *space, kRank), C order. A thread owns kPlaces neighbours of a row.
// Needs:   the width a multiple of kPlaces, the grid aligned to kVector elements.
// Bound:   memory: the grid is written once.

#include "dnnarray/affine.cuh"
#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kRank = 2;
  static constexpr int kPlaces = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY affine_grid_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank, kPlaces = Config::kPlaces, kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ theta, T* __restrict__ grid, long long batch, long long depth, long long height, long long width,
                   double inverse_depth, double inverse_height, double inverse_width) {
  const long long own = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kPlaces;
  if (own >= batch * depth * height * width) return;
  long long n = own;
  const long long w = split(n, width), h = split(n, height), d = split(n, depth);
  const A down = A(GridAxis{height, inverse_height}.at(h)), deep = A(GridAxis{depth, inverse_depth}.at(d));
  const GridAxis across{width, inverse_width};
  A slope[kRank], base[kRank];
#pragma unroll
  for (int i = 0; i < kRank; ++i) {
    const T* row = theta + (n * kRank + i) * (kRank + 1);
    slope[i] = widen(row[0]);
    base[i] = widen(row[kRank]) + down * widen(row[1]);
    if (kRank == 3) base[i] += deep * widen(row[2]);
  }
  T result[kPlaces * kRank];
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    const A x = A(across.at(w + k));
#pragma unroll
    for (int i = 0; i < kRank; ++i) result[k * kRank + i] = narrow<T>(base[i] + x * slope[i]);
  }
#pragma unroll
  for (int k = 0; k < kPlaces * kRank; k += kVector) {
    Vec<T, kVector> part;
#pragma unroll
    for (int v = 0; v < kVector; ++v) part.at[v] = result[k + v];
    store(grid + own * kRank + k, part);
  }
}
