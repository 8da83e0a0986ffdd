// The taps of all samples of all bins: the pixel of each, numbered through all images, and its share of the mean; `images * height * width` where
// a sample does not count or its box is not valid.
//
// Layout:  boxes (K, 5), C order; pixels and weights (K, p, q, ratio, ratio, 4). A thread owns a sample.
// Bound:   memory: 8 bytes a tap written.

#include "dnnarray/core/vec.cuh"
#include "dnnarray/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAligned = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY roi_align_taps_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ boxes, unsigned* __restrict__ pixels, A* __restrict__ weights, long long images, long long height,
                   long long width, long long count, long long p, long long q, long long ratio, double scale) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= count * p * q * ratio * ratio) return;
  long long k = own;
  const long long j = split(k, ratio), i = split(k, ratio), column = split(k, q), row = split(k, p);
  const Box<A> box = Box<A>::read(boxes + k * 5, images, A(scale), Config::kAligned, p, q, ratio);
  const Sample<A> down(box.down.place(row, i), height), across(box.across.place(column, j), width);
  const bool there = box.valid && down.inside && across.inside;
#pragma unroll
  for (int tap = 0; tap < 4; ++tap) {
    const long long pixel = (box.image * height + down.pixel[tap / 2]) * width + across.pixel[tap % 2];
    pixels[own * 4 + tap] = static_cast<unsigned>(there ? pixel : images * height * width);
    weights[own * 4 + tap] = down.weight[tap / 2] * across.weight[tap % 2] / A(ratio * ratio);
  }
}
