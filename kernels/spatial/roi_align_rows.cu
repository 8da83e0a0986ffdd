// y[k, c, p, q] pools the samples of bin (p, q) of box k, for planes that lie in C order and kRatio samples along each
// side of a bin: their mean, or the largest weighted pixel of all samples.
//
// The taps of a bin are a grid: 2 kRatio pixels down times 2 kRatio across. A lane owns one tap across of one bin, so
// that a warp reads along rows of pixels, and walks down; 2 kRatio lanes add up a bin.
//
// Layout:  x (N, C, height, width), boxes (K, 5), y (K, C, p, q). A block owns a box and `each` channels; its warps
//          take turns at them. The taps down stand in shared memory.
// Bound:   the look-ups in L1, two or three lines for 32 lanes.

#include "spatial/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr bool kAligned = false;
  static constexpr int kRatio = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long images;
  long long height;
  long long width;
  long long p;
  long long q;
  double scale;
  long long channels;
  long long each;
};
#define DNNARRAY_ENTRY spatial_roi_align_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRatio = Config::kRatio, kTaps = 2 * kRatio, kThreads = Config::kThreads;

using Tap = BoxTap<A>;

// The taps of a row of bins, of one lane across: their sum, or the largest.
__device__ __forceinline__ A walk_down(const T* plane, const int* pixels, const A* weights, const Tap& across,
                                       int width) {
  T values[kTaps];
  bool there[kTaps];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    there[t] = pixels[t] >= 0 && across.pixel >= 0;
    values[t] = plane[there[t] ? static_cast<long long>(pixels[t]) * width + across.pixel : 0];
  }
  A total = Config::kMaximum ? -infinity(A(0)) : A(0);
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    // Samples that do not count are 0.
    const A part = there[t] ? widen(values[t]) * (weights[t] * across.weight) : A(0);
    total = Config::kMaximum ? Max()(total, part) : total + part;
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ boxes, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long images = a.images, channels = a.channels, height = a.height, width = a.width, p = a.p, q = a.q,
                  each = a.each;
  extern __shared__ __align__(16) char dnn_smem[];
  const int downs = static_cast<int>(p) * kTaps, acrosses = static_cast<int>(q) * kTaps, lane = threadIdx.x % kWarp;
  A* weights = reinterpret_cast<A*>(dnn_smem);
  int* pixels = reinterpret_cast<int*>(weights + downs);
  const unsigned chunks = static_cast<unsigned>((channels + each - 1) / each);
  const long long k = blockIdx.x / chunks, first = static_cast<long long>(blockIdx.x % chunks) * each;
  const long long end = first + each < channels ? first + each : channels;
  const Box<A> box = Box<A>::read(boxes + k * 5, images, A(a.scale), Config::kAligned, p, q, kRatio);
  for (int t = threadIdx.x; t < downs; t += kThreads) {
    const Tap tap(box.down, t, kRatio, static_cast<int>(height));
    pixels[t] = tap.pixel;
    weights[t] = tap.weight;
  }
  __syncthreads();
  for (int front = 0; front < acrosses; front += kWarp) {
    const int column = (front + lane) / kTaps;
    const bool writes = lane % kTaps == 0 && column < q;
    const Tap across(box.across, front + lane < acrosses ? front + lane : 0, kRatio, static_cast<int>(width));
    for (long long c = first + threadIdx.x / kWarp; c < end; c += kThreads / kWarp) {
      const T* plane = x + (box.image * channels + c) * height * width;
      T* target = y + (k * channels + c) * p * q + column;
#pragma unroll 2
      for (int row = 0; row < p; ++row) {
        A total = walk_down(plane, pixels + row * kTaps, weights + row * kTaps, across, static_cast<int>(width));
        total = Config::kMaximum ? warp_reduce<kTaps>(total, Max()) : warp_sum<kTaps>(total);
        if (!Config::kMaximum) total /= A(kRatio * kRatio);
        if (writes) target[row * q] = narrow<T>(box.valid ? total : quiet_nan(A(0)));
      }
    }
  }
}
