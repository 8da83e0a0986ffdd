// y[n, c, p] = sum over taps of weight * x[n, c, tap], at the place that grid[n, p] names, from planes in shared
// memory.
//
// Layout:  x, grid and y in C order. A block owns kPlanes channels of an image: it copies their planes to shared
//          memory, then walks over all places, a thread those kThreads apart; a place's taps and weights serve all
//          planes. Scattered look-ups cost a few bank conflicts here, where L1 takes a cycle for each sector.
// Needs:   kPlanes planes in shared memory; pointers and planes aligned to kVector elements.
// Bound:   memory: x read once, y written once; the grid is read again for each block, from L2.

#include "dnnarray/core/vec.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kPlanes = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 512;
};
struct Arguments {
  long long channels;
  long long extents[3];
  long long places;
};
#define DNNARRAY_ENTRY spatial_grid_sample_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = GridPlace<T, Config::kRank, Config::kMode, Config::kPadding, Config::kCorners>;
constexpr int kPlanes = Config::kPlanes, kThreads = Config::kThreads;

// The values of all planes at a place.
__device__ __forceinline__ void sample(A (&total)[kPlanes], const T* planes, int plane, const Place& place, int height,
                                       int width) {
  Place::each([&](int k, int i, int j) {
    const A weight = place.weight(k, i, j);
    const bool inside = place.inside(k, i, j);
    const int at = place.pixel(k, i, j, height * width, width, 1);
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) total[c] += (inside ? widen(planes[c * plane + at]) : A(0)) * weight;
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grid, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char dnn_smem[];
  T* planes = reinterpret_cast<T*>(dnn_smem);
  const long long groups = (a.channels + kPlanes - 1) / kPlanes, plane = a.extents[0] * a.extents[1] * a.extents[2];
  const long long n = blockIdx.x / groups, first = blockIdx.x % groups * kPlanes;
  const int here = first + kPlanes < a.channels ? kPlanes : static_cast<int>(a.channels - first);
  const T* source = x + (n * a.channels + first) * plane;
  for (int i = threadIdx.x * Config::kVector; i < here * plane; i += kThreads * Config::kVector) {
    store(planes + i, load<T, Config::kVector>(source + i));
  }
  __syncthreads();
  for (long long p = threadIdx.x; p < a.places; p += kThreads) {
    const Place place(grid + (n * a.places + p) * Config::kRank, a.extents[0], a.extents[1], a.extents[2]);
    A total[kPlanes] = {};
    sample(total, planes, plane, place, a.extents[1], a.extents[2]);
    T* target = y + (n * a.channels + first) * a.places + p;
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      if (c < here) target[c * a.places] = narrow<T>(total[c]);
    }
  }
}
