// The windows of images as columns: columns[n, p, c, r] = x[n, c, p * stride + r * dilation - before], 0 outside of x.
//
// Layout:  x in any memory, given by its strides; the columns by theirs along image, pixel, channel and tap, groups
//          being an axis of their own. kLast: the columns' channels run fastest and a thread owns kVector of them at
//          one tap, for kSteps neighbouring pixels; else the pixels run fastest and a thread owns one pixel for kSteps
//          (channel, tap) pairs. What it owns is divided out once.
// Needs:   kVector > 1: channels of a group and all strides but the channels' multiples of it, pointers aligned.
// Bound:   memory: the columns written once; x comes from the caches after its first use.

#include "conv/geometry.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = float;
  static constexpr bool kLast = true;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long units;
  long long images;
  long long first;
  long long pixels;
  long long groups;
  long long channels;
  dnnarray::Strides x_strides;
  long long to_image;
  long long to_pixel;
  long long to_group;
  long long to_channel;
  long long to_tap;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_unfold_default
#endif

using namespace dnnarray;
using T = Config::Element;
using S = Config::Target;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kSlots = Config::kThreads / kLanes, kSteps = 8;

__device__ __forceinline__ void move(const T* x, S* columns, long long source, long long target) {
  const Vec<T, kVector> reg = source < 0 ? Vec<T, kVector>{} : load<T, kVector>(x + source);
  Vec<S, kVector> result;
#pragma unroll
  for (int j = 0; j < kVector; ++j) result.at[j] = narrow<S>(widen(reg.at[j]));
  store_wide<S, kVector>(columns + target, result);
}

// A thread's unit: a vector of channels at a tap; it walks over pixels.
__device__ __forceinline__ void walk_pixels(const Arguments& a, const T* x, S* columns, long long unit, long long row) {
  const int taps = a.axes.d.window * a.axes.h.window * a.axes.w.window;
  const Split by_c = split(unit, static_cast<int>(a.channels / kVector)), by_r = split(by_c.quotient, taps);
  if (by_r.quotient >= a.groups) return;
  const Place tap = Place::of(by_r.rest, a.axes.h.window, a.axes.w.window);
  const int c = by_c.rest * kVector;
  const long long from = (by_r.quotient * a.channels + c) * a.x_strides.c;
  const long long to = by_r.quotient * a.to_group + c * a.to_channel + by_r.rest * a.to_tap;
  long long n = row / a.pixels, p = row - n * a.pixels;
  Place pixel = Place::of(a.first + p, a.axes.h.out, a.axes.w.out);
  for (int step = 0; step < kSteps && n < a.images; ++step) {
    const long long at = a.axes.input(pixel, tap, a.x_strides);
    move(x, columns, at < 0 ? -1 : at + n * a.x_strides.n + from, n * a.to_image + p * a.to_pixel + to);
    pixel.next(a.axes.d.out, a.axes.h.out, a.axes.w.out);
    if (++p == a.pixels) {
      p = 0;
      ++n;
      pixel = Place::of(a.first, a.axes.h.out, a.axes.w.out);
    }
  }
}

// A thread's unit: a pixel; it walks over taps and channels of the images.
__device__ __forceinline__ void walk_channels(const Arguments& a, const T* x, S* columns, long long p, long long row) {
  if (p >= a.pixels) return;
  const int taps = a.axes.d.window * a.axes.h.window * a.axes.w.window, all = static_cast<int>(a.groups * a.channels);
  const Place pixel = Place::of(a.first + p, a.axes.h.out, a.axes.w.out);
  const Split by_r = split(row, taps), by_c = split(by_r.quotient, all);
  long long n = by_c.quotient;
  int c = by_c.rest, r = by_r.rest;
  Place tap = Place::of(r, a.axes.h.window, a.axes.w.window);
  for (int step = 0; step < kSteps && n < a.images; ++step) {
    const long long at = a.axes.input(pixel, tap, a.x_strides);
    move(x, columns, at < 0 ? -1 : at + n * a.x_strides.n + c * a.x_strides.c,
         n * a.to_image + p * a.to_pixel + c * a.to_channel + r * a.to_tap);
    ++r;
    if (tap.next(a.axes.d.window, a.axes.h.window, a.axes.w.window)) {
      r = 0;
      if (++c == all) {
        c = 0;
        ++n;
      }
    }
  }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kBusy = 1536;  // in the 32 registers that 2048 threads leave each, the compiler spills there
#else
constexpr int kBusy = 2048;
#endif

// `pixels` of each image from pixel `first` on; `units` of the walk's kind, of which a block takes kLanes at a time.
// Vectors keep all threads that a multiprocessor has room for.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kVector > 1 ? kBusy / Config::kThreads : 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, S* __restrict__ columns, const __grid_constant__ Arguments a) {
  const long long chunks = (a.units + kLanes - 1) / kLanes, block = blockIdx.x / chunks;
  const long long unit = (blockIdx.x - block * chunks) * kLanes + threadIdx.x % kLanes;
  const long long row = (block * kSlots + threadIdx.x / kLanes) * kSteps;
  if constexpr (Config::kLast) {
    walk_pixels(a, x, columns, unit, row);
  } else {
    walk_channels(a, x, columns, unit, row);
  }
}
