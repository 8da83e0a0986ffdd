// The gradient of the places of a bilinear grid over images, some channels at a time: for each place p
//   sums[range, n, p] = sum over the channels c of the range of g[c, p] * (d along the width, d along the height) of
//   the sampled value,
// in pixels; grid_sample_slopes_finish.cu adds the ranges and turns pixels into coordinates.
//
// Layout:  g (N, C, places), x (N, C, pixels), C order; pixels and weights of the four taps of each place (N, places,
//          4) by grid_sample_taps.cu. A block owns kThreads * kOwn places of an image and a range of channels, of which
//          it holds kPlanes in shared memory at a time; a tap outside of the image is the zero behind them. A thread
//          owns the places kThreads apart.
// Needs:   pointers aligned to kVector elements, pixels a multiple of kVector.
// Bound:   the conflicts of the look-ups in shared memory.

#include "spatial/planes.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kPlanes = 2;
  static constexpr int kOwn = 8;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 1024;
};
struct Arguments {
  long long batch;
  long long channels;
  long long pixels;
  long long places;
  long long parts;
  long long each;
};
#define DNNARRAY_ENTRY spatial_grid_sample_slopes_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kPlanes = Config::kPlanes, kThreads = Config::kThreads, kOwn = Config::kOwn;

// Adds what kPlanes channels give to both slopes of a place.
__device__ __forceinline__ void add_slopes(A& across, A& down, const Vec<T, kPlanes>* planes,
                                           const Vec<unsigned, 4>& pixel, const A (&weight)[4], const T* g,
                                           long long places, int here) {
  const Vec<T, kPlanes> tap[4] = {planes[pixel.at[0]], planes[pixel.at[1]], planes[pixel.at[2]], planes[pixel.at[3]]};
  const A above = weight[0] + weight[1], below = weight[2] + weight[3], left = weight[0] + weight[2],
          right = weight[1] + weight[3];
#pragma unroll
  for (int c = 0; c < kPlanes; ++c) {
    if (c >= here) break;
    const A incoming = widen(g[c * places]);
    const A x0 = widen(tap[0].at[c]), x1 = widen(tap[1].at[c]), x2 = widen(tap[2].at[c]), x3 = widen(tap[3].at[c]);
    across += incoming * ((x1 - x0) * above + (x3 - x2) * below);
    down += incoming * ((x2 - x0) * left + (x3 - x1) * right);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const unsigned* __restrict__ pixels_of,
                   const A* __restrict__ weights, A* __restrict__ sums, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char dnn_smem[];
  Vec<T, kPlanes>* planes = reinterpret_cast<Vec<T, kPlanes>*>(dnn_smem);
  const unsigned block = blockIdx.x / static_cast<unsigned>(a.parts);
  const long long range = block / static_cast<unsigned>(a.batch), n = block % static_cast<unsigned>(a.batch);
  const int size = static_cast<int>(a.places),
            own = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.parts)) * (kThreads * kOwn) + threadIdx.x;
  const long long end = (range + 1) * a.each < a.channels ? (range + 1) * a.each : a.channels;
  const unsigned* tap_pixels = pixels_of + n * a.places * 4;
  const A* tap_weights = weights + n * a.places * 4;
  A across[kOwn] = {}, down[kOwn] = {};
  for (long long c = range * a.each; c < end; c += kPlanes) {
    const int here = c + kPlanes < end ? kPlanes : static_cast<int>(end - c);
    __syncthreads();
    interleave<kPlanes, Config::kVector, kThreads>(planes, x + (n * a.channels + c) * a.pixels, a.pixels, a.pixels,
                                                   here);
    __syncthreads();
    const T* incoming = grad + (n * a.channels + c) * a.places;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int p = own + k * kThreads;
      if (p >= size) break;
      const Vec<unsigned, 4> pixel = load<unsigned, 4>(tap_pixels + 4ll * p);
      A weight[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) weight[t] = tap_weights[4ll * p + t];
      add_slopes(across[k], down[k], planes, pixel, weight, incoming + p, a.places, here);
    }
  }
  A* sum = sums + (range * a.batch + n) * a.places * 2;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int p = own + k * kThreads;
    if (p < size) store(sum + 2ll * p, Vec<A, 2>{across[k], down[k]});
  }
}
