// The taps of all boxes along both sides, for roi_align_planes.cu: of box k first 2 ratio p down, then 2 ratio q across, each a distance in
// bytes of the plane (where the sample does not count: down, that of the row behind the last; across, -1) and its weight; and the image of each box,
// -1 where it is not valid.
//
// Layout:  boxes (K, 5), C order. A thread owns a tap.
// Bound:   latency.

#include "dnnarray/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAligned = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY roi_align_sides_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ boxes, BoxTap<A>* __restrict__ taps, int* __restrict__ image_of, long long images, long long height,
                   long long width, long long count, long long p, long long q, long long ratio, double scale) {
  const long long downs = 2 * ratio * p, all = downs + 2 * ratio * q;
  long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (k >= count * all) return;
  const long long own = k, number = split(k, all);
  const Box<A> box = Box<A>::read(boxes + k * 5, images, A(scale), Config::kAligned, p, q, ratio);
  const bool down = number < downs;
  BoxTap<A> tap(down ? box.down : box.across, down ? number : number - downs, ratio, down ? height : width);
  const int step = static_cast<int>(down ? width * sizeof(T) : sizeof(T)), missing = down ? static_cast<int>(height * width * sizeof(T)) : -1;
  tap.pixel = tap.pixel >= 0 ? tap.pixel * step : missing;
  taps[own] = tap;
  if (number == 0) image_of[k] = box.valid ? static_cast<int>(box.image) : -1;
}
