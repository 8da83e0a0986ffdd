// The samples of all boxes along both sides, for roi_align_planes.cu: of box k first those down, of `rows` rows of bins
// (behind the p that there are, such as do not count), then ratio q across. Each is the distance in bytes of the pixel
// before it in the plane (where the sample does not count: down, that of the row behind the last; across, -1) and the
// weight of the next. And the image of each box, -1 where it is not valid.
//
// Layout:  boxes (K, 5), C order. A thread owns a sample.
// Bound:   latency.

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
  long long rows;
  long long ratio;
};
#define DNNARRAY_ENTRY spatial_roi_align_sides_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ boxes, BoxSample<A>* __restrict__ samples, int* __restrict__ image_of,
                   const __grid_constant__ Arguments a) {
  const long long downs = a.ratio * a.rows, all = downs + a.ratio * a.q;
  long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (k >= a.count * all) return;
  const long long own = k, number = split(k, all);
  const Box<A> box = Box<A>::read(boxes + k * 5, a.images, A(a.scale), Config::kAligned, a.p, a.q, a.ratio);
  const bool down = number < downs;
  BoxSample<A> sample(down ? box.down : box.across, down ? number : number - downs, a.ratio, down ? a.height : a.width);
  const int step = static_cast<int>(down ? a.width * sizeof(T) : sizeof(T)),
            missing = down ? static_cast<int>(a.height * a.width * sizeof(T)) : -1;
  const bool counts = sample.pixel >= 0 && (!down || number < a.ratio * a.p);
  sample.pixel = counts ? sample.pixel * step : missing;
  samples[own] = sample;
  if (number == 0) image_of[k] = box.valid ? static_cast<int>(box.image) : -1;
}
