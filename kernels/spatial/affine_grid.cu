// grid[n, place] = theta[n] @ (x, y[, z], 1).
//
// Layout:  theta (N, kRank, kRank + 1), grid (N, *space, kRank), C order. A thread owns kPlaces neighbours of a row.
// Needs:   the width a multiple of kPlaces, the grid aligned to kVector elements; kWide where there are 2^31 places or more.
// Bound:   memory: the grid is written once.

#include "dnnarray/affine.cuh"
#include "dnnarray/division.cuh"
#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kRank = 2;
  static constexpr int kPlaces = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
  static constexpr bool kWide = false;
};
#define DNNARRAY_ENTRY affine_grid_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank, kPlaces = Config::kPlaces, kVector = Config::kVector;

// Where a place stands: its image and its pixel along depth, height and width.
struct Pixel {
  long long n, d, h, w;
};

__device__ __forceinline__ Pixel pixel(long long place, const Divisor& by_depth, const Divisor& by_height, const Divisor& by_width) {
  if constexpr (Config::kWide) {
    Pixel of;
    of.n = place;
    of.w = split(of.n, static_cast<long long>(by_width.n)), of.h = split(of.n, static_cast<long long>(by_height.n));
    of.d = split(of.n, static_cast<long long>(by_depth.n));
    return of;
  } else {
    const unsigned i = static_cast<unsigned>(place), row = by_width.quotient(i), plane = by_height.quotient(row), n = by_depth.quotient(plane);
    return {n, plane - n * by_depth.n, row - plane * by_height.n, i - row * by_width.n};
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ theta, T* __restrict__ grid, long long batch, long long depth, long long height, long long width,
                   long long depth_divisor, long long height_divisor, long long width_divisor, double inverse_depth, double inverse_height,
                   double inverse_width) {
  const long long own = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kPlaces;
  if (own >= batch * depth * height * width) return;
  const Pixel of = pixel(own, Divisor(depth, depth_divisor), Divisor(height, height_divisor), Divisor(width, width_divisor));
  const A down = A(GridAxis{height, inverse_height}.at(of.h)), deep = A(GridAxis{depth, inverse_depth}.at(of.d));
  const GridAxis across{width, inverse_width};
  A slope[kRank], base[kRank];
#pragma unroll
  for (int i = 0; i < kRank; ++i) {
    const T* row = theta + (of.n * kRank + i) * (kRank + 1);
    slope[i] = widen(row[0]);
    base[i] = widen(row[kRank]) + down * widen(row[1]);
    if (kRank == 3) base[i] += deep * widen(row[2]);
  }
  T result[kPlaces * kRank];
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) {
    const A x = A(across.at(of.w + k));
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
