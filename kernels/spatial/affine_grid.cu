// grid[n, place] = theta[n] @ (x, y[, z], 1).
//
// Layout:  theta (N, kRank, kRank + 1), grid (N, *space, kRank), C order. A thread owns kPlaces neighbours along the
//          width in each of kRows rows that follow each other along the height, neighbouring threads neighbouring
//          places.
// Needs:   the width a multiple of kPlaces, the grid aligned to kVector elements; Index long long from 2^30 places on.
// Bound:   memory: the grid is written once.

#include "dnnarray/core/division.cuh"
#include "dnnarray/core/vec.cuh"
#include "spatial/affine.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = int;
  static constexpr int kRank = 2;
  static constexpr int kPlaces = 2;
  static constexpr int kRows = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long extents[3];
  long long lengths[3];
  double inverses[3];
  long long threads;
  long long divisors[3];
};
#define DNNARRAY_ENTRY spatial_affine_grid_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using I = Config::Index;
constexpr int kRank = Config::kRank, kPlaces = Config::kPlaces, kVector = Config::kVector, kRows = Config::kRows;

// What a thread owns: its image, and its first pixel along depth, height and width.
struct Pixel {
  I n, d, h, w;
};

// The quotient; i becomes the rest. `magic` is what a Divisor takes.
__device__ __forceinline__ I split_off(I& i, long long extent, long long magic) {
  const I quotient = sizeof(I) == 8 ? i / static_cast<I>(extent)
                                    : static_cast<I>(Divisor(extent, magic).quotient(static_cast<unsigned>(i)));
  i -= quotient * static_cast<I>(extent);
  return quotient;
}

// The places of one row: base + x slope along each axis.
__device__ __forceinline__ void write(T* grid, const A (&x)[kPlaces], const A (&base)[kRank], const A (&slope)[kRank]) {
  A result[kPlaces * kRank];
#pragma unroll
  for (int k = 0; k < kPlaces * kRank; ++k) result[k] = base[k % kRank] + x[k / kRank] * slope[k % kRank];
#pragma unroll
  for (int k = 0; k < kPlaces * kRank; k += kVector) {
    A part[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) part[v] = result[k + v];
    store(grid + k, narrow_all<T, kVector>(part));
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ theta, T* __restrict__ grid, const __grid_constant__ Arguments a) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= a.threads) return;
  Pixel of;
  of.w = static_cast<I>(own);
  of.h = split_off(of.w, a.extents[2] / kPlaces, a.divisors[2]),
  of.d = split_off(of.h, (a.extents[1] + kRows - 1) / kRows, a.divisors[1]);
  of.n = split_off(of.d, a.extents[0], a.divisors[0]);
  of.w *= kPlaces, of.h *= kRows;
  const GridAxis<A, I> across(a.extents[2], a.lengths[2], a.inverses[2]),
      down(a.extents[1], a.lengths[1], a.inverses[1]);
  A x[kPlaces], slope[kRank], fall[kRank], base[kRank];
#pragma unroll
  for (int k = 0; k < kPlaces; ++k) x[k] = across.at(of.w + k);
#pragma unroll
  for (int i = 0; i < kRank; ++i) {
    const T* row = theta + static_cast<long long>(of.n * kRank + i) * (kRank + 1);
    slope[i] = widen(row[0]), fall[i] = widen(row[1]), base[i] = widen(row[kRank]);
    if constexpr (kRank == 3)
      base[i] += GridAxis<A, I>(a.extents[0], a.lengths[0], a.inverses[0]).at(of.d) * widen(row[2]);
  }
  T* first =
      grid +
      (((static_cast<long long>(of.n) * a.extents[0] + of.d) * a.extents[1] + of.h) * a.extents[2] + of.w) * kRank;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (of.h + r >= a.extents[1]) break;
    const A y = down.at(of.h + r);
    A row_base[kRank];
#pragma unroll
    for (int i = 0; i < kRank; ++i) row_base[i] = base[i] + y * fall[i];
    write(first + r * a.extents[2] * kRank, x, row_base, slope);
  }
}
