// partial[part, n, i, k] = sum over the places of a part of image n of g[n, place, i] * coordinate k, the last coordinate being 1.
//
// Layout:  g (N, *space, kRank), C order. Block (part, n) owns neighbouring places of an image, a thread those kThreads apart.
// Bound:   memory: g is read once.

#include "dnnarray/affine.cuh"
#include "dnnarray/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY affine_grid_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ g, A* __restrict__ partial, long long batch, long long parts, long long depth, long long height,
                   long long width) {
  __shared__ A shared[Config::kThreads / kWarp];
  const long long n = blockIdx.x % batch, part = blockIdx.x / batch, places = depth * height * width;
  const long long length = (places + parts - 1) / parts, start = part * length;
  const long long end = start + length < places ? start + length : places;
  A sums[kRank][kRank + 1] = {};
  for (long long i = start + threadIdx.x; i < end; i += Config::kThreads) {
    long long d = i;
    const long long w = split(d, width), h = split(d, height);
    const A across = coordinate<Config::kCorners, A>(w, width), down = coordinate<Config::kCorners, A>(h, height);
    const A deep = kRank == 3 ? coordinate<Config::kCorners, A>(d, depth) : A(1);
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      const A value = widen(g[(n * places + i) * kRank + r]);
      sums[r][0] += value * across;
      sums[r][1] += value * down;
      sums[r][2] += value * deep;
      if (kRank == 3) sums[r][kRank] += value;
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
