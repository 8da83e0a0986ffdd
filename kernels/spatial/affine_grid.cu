// grid[n, place] = theta[n] @ (x, y[, z], 1).
//
// Layout:  theta (N, kRank, kRank + 1), grid (N, *space, kRank), C order. A thread owns a place.
// Bound:   memory: the grid is written once.

#include "dnnarray/affine.cuh"
#include "dnnarray/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY affine_grid_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ theta, T* __restrict__ grid, long long batch, long long depth, long long height, long long width) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= batch * depth * height * width) return;
  long long n = own;
  const long long w = split(n, width), h = split(n, height), d = split(n, depth);
  const A at[4] = {coordinate<Config::kCorners, A>(w, width), coordinate<Config::kCorners, A>(h, height),
                   kRank == 3 ? coordinate<Config::kCorners, A>(d, depth) : A(1), A(1)};
#pragma unroll
  for (int i = 0; i < kRank; ++i) {
    const T* row = theta + (n * kRank + i) * (kRank + 1);
    A sum = widen(row[kRank]);
#pragma unroll
    for (int k = 0; k < kRank; ++k) sum += at[k] * widen(row[k]);
    grid[own * kRank + i] = narrow<T>(sum);
  }
}
