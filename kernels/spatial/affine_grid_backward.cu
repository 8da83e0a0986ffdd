// partial[part, n, i, k] = sum over the places of a part of image n of g[n, place, i] * coordinate k, the last coordinate being 1.
//
// Layout:  g (N, *space, kRank), C order. Block (part, n) owns `length` neighbouring places of an image, a thread kPlaces neighbours of a row,
//          again and again kThreads * kPlaces further.
// Needs:   the width and `length` multiples of kPlaces, g aligned to kVector elements.
// Bound:   memory: g is read once.

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
#define DNNARRAY_ENTRY affine_grid_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank, kPlaces = Config::kPlaces, kVector = Config::kVector;

// The gradients of kPlaces neighbours.
__device__ __forceinline__ void read(A (&values)[kPlaces * kRank], const T* g) {
#pragma unroll
  for (int k = 0; k < kPlaces * kRank; k += kVector) {
    const Vec<T, kVector> part = load<T, kVector>(g + k);
#pragma unroll
    for (int v = 0; v < kVector; ++v) values[k + v] = widen(part.at[v]);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ g, A* __restrict__ partial, long long batch, long long parts, long long length, long long depth,
                   long long height, long long width, double inverse_depth, double inverse_height, double inverse_width) {
  __shared__ A shared[Config::kThreads / kWarp];
  const long long n = blockIdx.x % batch, part = blockIdx.x / batch, places = depth * height * width, start = part * length;
  const long long end = start + length < places ? start + length : places;
  const GridAxis across{width, inverse_width};
  A sums[kRank][kRank + 1] = {};
#pragma unroll 2
  for (long long i = start + threadIdx.x * kPlaces; i < end; i += Config::kThreads * kPlaces) {
    A values[kPlaces * kRank];
    read(values, g + (n * places + i) * kRank);
    long long d = i;
    const long long w = split(d, width), h = split(d, height);
    const A down = A(GridAxis{height, inverse_height}.at(h)), deep = A(GridAxis{depth, inverse_depth}.at(d));
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      A all = A(0);
#pragma unroll
      for (int k = 0; k < kPlaces; ++k) {
        all += values[k * kRank + r];
        sums[r][0] += values[k * kRank + r] * A(across.at(w + k));
      }
      sums[r][1] += all * down;
      if (kRank == 3) sums[r][2] += all * deep;
      sums[r][kRank] += all;
    }
  }
#pragma unroll
  for (int r = 0; r < kRank; ++r) {
#pragma unroll
    for (int k = 0; k <= kRank; ++k) {
      const A sum = block_reduce<Config::kThreads>(sums[r][k], Sum(), shared);
      if (threadIdx.x == 0) partial[((part * batch + n) * kRank + r) * (kRank + 1) + k] = sum;
    }
  }
}
