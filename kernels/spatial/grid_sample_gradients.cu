// Both gradients of grid_sample in one launch, for planes that fit into shared memory.
//
// The first blocks take a plane of the image each: the sums of its pixels stand in shared memory, all places of the
// image add to them, and the plane is written once, without zeros before and rounding after. They are integers, so that
// the order of the places does not matter (shared_sums.cuh). The other blocks take the places: kLanes threads to each
// (grid_slopes.cuh), or one to each number, which is 0, where the nearest pixel is taken.
//
// Layout:  g, x and dx in C order, the grid and its gradient too. `planes` blocks of the first kind; fewer than 2^bits
//          taps in an image.
// Needs:   two words for each pixel of a plane in shared memory; not for double.
// Bound:   latency: read the grid, add, write; for many places the additions in shared memory.

#include "spatial/grid_slopes.cuh"
#include "spatial/shared_sums.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kLanes = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long planes;
  long long bits;
  dnnarray::SlopeView view;
};
#define DNNARRAY_ENTRY spatial_grid_sample_gradients_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using C = Config;
using Place = GridPlace<T, C::kRank, C::kMode, C::kPadding, C::kCorners>;
constexpr int kThreads = Config::kThreads, kWarps = kThreads / kWarp;
static_assert(sizeof(A) == 4, "double has more digits than the sums");

// Where the places of a block's image are, and what came to a channel there.
struct Incoming {
  const T *g, *grid;
  long long places;
  const SlopeView& view;

  // body(value, place) of all places.
  template <typename Body>
  __device__ __forceinline__ void each(Body body) const {
    for (long long at = threadIdx.x; at < places; at += kThreads) {
      body(widen(g[at]), Place(grid + at * C::kRank, view.depth, view.height, view.width));
    }
  }
};

// The bits of the largest |g|, NaN counting as the largest of all; or of the largest that is finite.
template <bool kFinite>
__device__ __forceinline__ unsigned largest(const Incoming& in, unsigned (&shared)[kWarps]) {
  const int lane = threadIdx.x % kWarp;
  unsigned found = 0;
  for (long long at = threadIdx.x; at < in.places; at += kThreads) {
    const unsigned bits = __float_as_uint(widen(in.g[at])) & 0x7fffffffu;
    if (bits > found && !(kFinite && bits >= kInfiniteBits)) found = bits;
  }
  found = __reduce_max_sync(kAllLanes, found);
  if (lane == 0) shared[threadIdx.x / kWarp] = found;
  __syncthreads();
  return __reduce_max_sync(kAllLanes, lane < kWarps ? shared[lane] : 0);
}

// body(pixel, contribution) of all taps of a place that lie inside of the image.
template <typename Body>
__device__ __forceinline__ void scatter(A value, const Place& place, const SlopeView& view, Body body) {
  const int row = static_cast<int>(view.width), slice = row * static_cast<int>(view.height);
  Place::each([&](int k, int i, int j) {
    if (place.inside(k, i, j)) body(place.pixel(k, i, j, slice, row, 1), value * place.weight(k, i, j));
  });
}

// Infinities and NaN, behind the sums of what is finite.
__device__ __forceinline__ void mark(unsigned* flags, const Incoming& in, T* dx, int pixels) {
  __syncthreads();
  for (int i = threadIdx.x; i < pixels; i += kThreads) flags[i] = 0;
  __syncthreads();
  in.each([&](A value, const Place& place) {
    if (!is_finite(value)) scatter(value, place, in.view, [&](int at, A part) { atomicOr(flags + at, flag_of(part)); });
  });
  __syncthreads();
  for (int i = threadIdx.x; i < pixels; i += kThreads) {
    if (flags[i]) dx[i] = narrow<T>(flagged(flags[i]));
  }
}

// One plane of the image's gradient. `memory` holds two words for each pixel.
__device__ __forceinline__ void scatter_plane(unsigned* memory, const Incoming& in, T* dx, int bits) {
  __shared__ unsigned shared[kWarps];
  const int pixels = static_cast<int>(in.view.depth * in.view.height * in.view.width);
  for (int i = threadIdx.x; i < 2 * pixels; i += kThreads) memory[i] = 0;
  unsigned most = largest<false>(in, shared);
  const bool finite = most < kInfiniteBits;
  if (!finite) {
    __syncthreads();
    most = largest<true>(in, shared);
  }
  const SharedSums sums(memory, pixels, most, bits);
  in.each([&](A value, const Place& place) {
    if (finite || is_finite(value)) scatter(value, place, in.view, [&](int at, A part) { sums.add(at, part); });
  });
  __syncthreads();
  for (int i = threadIdx.x; i < pixels; i += kThreads) dx[i] = narrow<T>(sums.total(i));
  if (!finite) mark(memory, in, dx, pixels);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ grid, T* __restrict__ dx,
                   T* __restrict__ dgrid, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char dnn_smem[];
  const SlopeView view = a.view;
  if (blockIdx.x < a.planes) {
    const long long places = view.o * view.p * view.q, n = blockIdx.x / static_cast<unsigned>(view.channels);
    const Incoming in{grad + blockIdx.x * places, grid + n * places * C::kRank, places, view};
    scatter_plane(reinterpret_cast<unsigned*>(dnn_smem), in, dx + blockIdx.x * (view.depth * view.height * view.width),
                  static_cast<int>(a.bits));
    return;
  }
  const long long index = (static_cast<long long>(blockIdx.x) - a.planes) * kThreads + threadIdx.x;
  if constexpr (C::kMode == kNearest) {  // the coordinates do not matter
    if (index < view.batch * view.o * view.p * view.q * C::kRank) dgrid[index] = narrow<T>(A(0));
  } else {
    GridSlopes<T, C::kRank, C::kMode, C::kPadding, C::kCorners, 1, C::kLanes>::run(index, grad, x, grid, dgrid, view);
  }
}
