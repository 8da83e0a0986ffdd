// The taps of all samples of all bins: the pixel of each, numbered through all images, and its share of the mean;
// `images * height * width` where a sample does not count or its box is not valid.
//
// Layout:  boxes (K, 5), C order; pixels and weights (K, p, q, ratio, ratio, 4). A thread owns a sample.
// Bound:   memory: 8 bytes a tap written.

#include "dnnarray/core/vec.cuh"
#include "spatial/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAligned = false;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long images;
  long long height;
  long long width;
  long long p;
  long long q;
  double scale;
  long long count;
  long long ratio;
};
#define DNNARRAY_ENTRY spatial_roi_align_taps_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ boxes, unsigned* __restrict__ pixels, A* __restrict__ weights,
                   const __grid_constant__ Arguments a) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= a.count * a.p * a.q * a.ratio * a.ratio) return;
  long long k = own;
  const long long j = split(k, a.ratio), i = split(k, a.ratio), column = split(k, a.q), row = split(k, a.p);
  const Box<A> box = Box<A>::read(boxes + k * 5, a.images, A(a.scale), Config::kAligned, a.p, a.q, a.ratio);
  const Sample<A> down(box.down.place(row, i), a.height), across(box.across.place(column, j), a.width);
  const bool there = box.valid && down.inside && across.inside;
#pragma unroll
  for (int tap = 0; tap < 4; ++tap) {
    const long long pixel = (box.image * a.height + down.pixel[tap / 2]) * a.width + across.pixel[tap % 2];
    pixels[own * 4 + tap] = static_cast<unsigned>(there ? pixel : a.images * a.height * a.width);
    weights[own * 4 + tap] = down.weight[tap / 2] * across.weight[tap % 2] / A(a.ratio * a.ratio);
  }
}
