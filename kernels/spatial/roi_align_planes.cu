// y[k, c, p, q] pools the samples of bin (p, q) of box k, for planes that fit into shared memory and kRatio samples along each side of a bin:
// their mean, or the largest weighted pixel of all samples.
//
// The taps of a bin are a grid, 2 kRatio pixels down times 2 kRatio across. A lane owns one tap across of one bin and walks down; 2 kRatio lanes
// add up a bin.
//
// Layout:  x (N, C, height, width), y (K, C, p, q); taps and images of the boxes by roi_align_sides.cu. A block owns a plane of x; its warps take
//          turns at the boxes of that image, and in the first image's planes at those that are not valid, which give NaN.
// Needs:   pointers aligned to kVector elements, height * width a multiple of it.
// Bound:   memory: x read once, y written once.

#include "dnnarray/roi.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr int kRatio = 2;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 1024;
};
#define DNNARRAY_ENTRY roi_align_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRatio = Config::kRatio, kTaps = 2 * kRatio, kThreads = Config::kThreads, kWarps = kThreads / kWarp, kVector = Config::kVector;
using Tap = BoxTap<A>;

// The taps down of a row of bins, two at a time.
__device__ __forceinline__ void fetch(Tap (&downs)[kTaps], const Tap* from) {
  constexpr int kPair = 16 / sizeof(Tap);
#pragma unroll
  for (int t = 0; t < kTaps; t += kPair) {
    const Vec<Tap, kPair> pair = load<Tap, kPair>(from + t);
#pragma unroll
    for (int k = 0; k < kPair; ++k) downs[t + k] = pair.at[k];
  }
}

// The pixels at the taps down and one tap across: their weighted sum, or the largest. Samples that do not count are 0. `column` points at the
// pixel across in the first row; all lanes have the same taps down.
__device__ __forceinline__ A walk_down(const T* column, const Tap (&downs)[kTaps], const Tap& across) {
  A total = Config::kMaximum ? -infinity(A(0)) : A(0);
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    if (Config::kMaximum) {
      const bool there = downs[t].pixel >= 0 && across.pixel >= 0;
      total = Max()(total, there ? widen(column[downs[t].pixel]) * (downs[t].weight * across.weight) : A(0));
    } else if (downs[t].pixel >= 0) {
      total += widen(column[downs[t].pixel]) * downs[t].weight;
    }
  }
  if (Config::kMaximum) return total;
  return across.pixel >= 0 ? total * across.weight : A(0);
}

// All bins of a box; `y` points at the first.
__device__ __forceinline__ void pool(const T* plane, const Tap* taps, T* y, int p, int q, bool valid) {
  const int lane = threadIdx.x % kWarp;
  const Tap* acrosses = taps + p * kTaps;
  for (int front = 0; front < q * kTaps; front += kWarp) {
    const int own = (front + lane) / kTaps;
    const bool writes = lane % kTaps == 0 && own < q;
    Tap across = acrosses[own < q ? front + lane : 0];
    if (!Config::kMaximum) across.weight *= A(1) / A(kRatio * kRatio);
    const T* column = plane + (across.pixel >= 0 ? across.pixel : 0);
    T* to = y + own;
#pragma unroll 4
    for (int row = 0; row < p; ++row) {
      Tap downs[kTaps];
      fetch(downs, taps + row * kTaps);
      A total = walk_down(column, downs, across);
      total = Config::kMaximum ? warp_reduce<kTaps>(total, Max()) : warp_sum<kTaps>(total);
      if (writes) *to = narrow<T>(valid ? total : quiet_nan(A(0)));
      to += q;
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kThreads == 512 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Tap* __restrict__ taps, const int* __restrict__ image_of, T* __restrict__ y,
                   long long channels, long long height, long long width, long long count, long long p, long long q) {
  extern __shared__ __align__(16) char dnn_smem[];
  T* plane = reinterpret_cast<T*>(dnn_smem);
  const int n = static_cast<int>(blockIdx.x / channels), size = static_cast<int>(height * width), warp = threadIdx.x / kWarp;
  const long long c = blockIdx.x % channels;
  const T* source = x + static_cast<long long>(blockIdx.x) * size;
#pragma unroll 4
  for (int i = threadIdx.x * kVector; i < size; i += kThreads * kVector) store(plane + i, load<T, kVector>(source + i));
  __syncthreads();
  for (long long first = warp; first < count; first += kThreads) {
    const long long own = first + static_cast<long long>(threadIdx.x % kWarp) * kWarps;
    const int image = own < count ? image_of[own] : -2;
    for (unsigned left = __ballot_sync(kAllLanes, image == n || (image == -1 && n == 0)); left != 0; left &= left - 1) {
      const int lane = __ffs(left) - 1;
      const long long k = first + static_cast<long long>(lane) * kWarps;
      const bool valid = __shfl_sync(kAllLanes, image, lane) >= 0;
      pool(plane, taps + k * (p + q) * kTaps, y + (k * channels + c) * p * q, static_cast<int>(p), static_cast<int>(q),
           valid);
    }
  }
}
