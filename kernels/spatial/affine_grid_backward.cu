// partial[part, n, i, k] = sum over the places of a part of image n of g[n, place, i] * coordinate k, the last
// coordinate being 1.
//
// Layout:  g (N, *space, kRank), C order. Block (part, n) owns `length` neighbouring places of an image, a thread
//          kPlaces neighbours of a row, again and again kThreads * kPlaces further.
// Needs:   the width and `length` multiples of kPlaces, g aligned to kVector elements; Index long long from 2^30 places
//          on.
// Bound:   memory: g is read once.

#include "dnnarray/core/vec.cuh"
#include "spatial/affine.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = int;
  static constexpr int kRank = 2;
  static constexpr int kPlaces = 4;
  static constexpr int kRows = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long extents[3];
  long long lengths[3];
  double inverses[3];
  long long batch;
  long long parts;
  long long length;
};
#define DNNARRAY_ENTRY spatial_affine_grid_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using I = Config::Index;
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

// Where a thread stands along width, height and depth, and how far it goes at once.
struct Walk {
  I w, h, d, step_w, step_h, step_d, width, height;

  __device__ __forceinline__ Walk(I place, I step, I height, I width) : width(width), height(height) {
    d = place / width, w = place - d * width;
    step_d = step / width, step_w = step - step_d * width;
    h = d, d = h / height, h -= d * height;
    step_h = step_d, step_d = step_h / height, step_h -= step_d * height;
  }
  __device__ __forceinline__ void next() {
    w += step_w, h += step_h, d += step_d;
    if (w >= width) w -= width, ++h;
    if (h >= height) h -= height, ++d;
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ grad, A* __restrict__ partial, const __grid_constant__ Arguments a) {
  constexpr int kWarps = Config::kThreads / kWarp, kSums = kRank * (kRank + 1);
  __shared__ A shared[kWarps][kSums];
  const long long n = blockIdx.x % a.batch, part = blockIdx.x / a.batch,
                  places = a.extents[0] * a.extents[1] * a.extents[2], start = part * a.length;
  const I end = static_cast<I>(start + a.length < places ? start + a.length : places),
          step = Config::kThreads * kPlaces;
  const GridAxis<A, I> across(a.extents[2], a.lengths[2], a.inverses[2]),
      down(a.extents[1], a.lengths[1], a.inverses[1]), deep(a.extents[0], a.lengths[0], a.inverses[0]);
  const T* own = grad + n * places * kRank;
  A sums[kRank][kRank + 1] = {};
  I i = static_cast<I>(start) + threadIdx.x * kPlaces;
  Walk at(i, step, static_cast<I>(a.extents[1]), static_cast<I>(a.extents[2]));
#pragma unroll 2
  for (; i < end; i += step, at.next()) {
    A values[kPlaces * kRank];
    read(values, own + static_cast<long long>(i) * kRank);
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      A all = A(0);
#pragma unroll
      for (int k = 0; k < kPlaces; ++k) {
        all += values[k * kRank + r];
        sums[r][0] += values[k * kRank + r] * across.at(at.w + k);
      }
      sums[r][1] += all * down.at(at.h);
      if (kRank == 3) sums[r][2] += all * deep.at(at.d);
      sums[r][kRank] += all;
    }
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    const A sum = warp_sum(sums[s / (kRank + 1)][s % (kRank + 1)]);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp][s] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kSums) {
    A sum = A(0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared[w][threadIdx.x];
    partial[(part * a.batch + n) * kSums + threadIdx.x] = sum;
  }
}
