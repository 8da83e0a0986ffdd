// The gradient of roi_align: that of a bin goes to the pixels of its samples by their weights, or to the first of the
// largest weighted pixels (NaN is the largest).
//
// Layout:  as roi_align, g by strides, the sums in the memory order of x. A box that is not valid has no gradient.
// Bound:   atomics in L2, four for each sample (one for the maximum).

#include "spatial/roi.cuh"
#include "spatial/scatter.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr bool kAligned = false;
  static constexpr bool kChannelsLast = false;
  static constexpr bool kFixed = false;
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
  long long count;
  long long ratio;
  long long x_strides[4];
  long long y_strides[4];
  long long bits;
};
#define DNNARRAY_ENTRY spatial_roi_align_scatter_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

// The largest so far: its value, place and weight.
struct Largest {
  A value, weight;
  long long at;

  __device__ __forceinline__ void meet(A other, A its_weight, long long its_place) {
    const bool better = at < 0 || other > value || (other != other && value == value);
    if (!better) return;
    value = other;
    weight = its_weight;
    at = its_place;
  }
};

template <typename Sums>
__device__ __forceinline__ void scatter(const Sums& sums, A g, const T* x, long long base, const Box<A>& box,
                                        long long p, long long q, int height, int width, long long x_h, long long x_w) {
  const long long samples = box.down.count * box.across.count;
  if (samples == 0) return;
  long long i_first, i_end, j_first, j_end, counted = 0;
  box.down.range(p, height, i_first, i_end);
  box.across.range(q, width, j_first, j_end);
  const A share = g / A(samples);
  Largest largest{A(0), A(0), -1};
  for (long long i = i_first; i < i_end; ++i) {
    const Sample<A> down(box.down.place(p, i), height);
    if (!down.inside) continue;
    for (long long j = j_first; j < j_end; ++j) {
      const Sample<A> across(box.across.place(q, j), width);
      if (!across.inside) continue;
      ++counted;
#pragma unroll
      for (int tap = 0; tap < 4; ++tap) {
        const long long at = base + down.pixel[tap / 2] * x_h + across.pixel[tap % 2] * x_w;
        const A weight = down.weight[tap / 2] * across.weight[tap % 2];
        if constexpr (Config::kMaximum) {
          largest.meet(widen(x[at]) * weight, weight, at);
        } else {
          sums.add(at, share * weight);
        }
      }
    }
  }
  if (!Config::kMaximum || largest.at < 0) return;
  if (counted < samples && A(0) > largest.value) return;  // samples that do not count are 0, and have no pixel
  sums.add(largest.at, g * largest.weight);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ boxes, void* sums,
                   unsigned* flags, const unsigned long long* largest, const __grid_constant__ Arguments a) {
  long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (k >= a.count * a.channels * a.p * a.q) return;
  long long c = Config::kChannelsLast ? split(k, a.channels) : 0;
  const long long column = split(k, a.q), row = split(k, a.p);
  if (!Config::kChannelsLast) c = split(k, a.channels);
  const Box<A> box = Box<A>::read(boxes + k * 5, a.images, A(a.scale), Config::kAligned, a.p, a.q, a.ratio);
  if (!box.valid) return;
  const A value = widen(grad[k * a.y_strides[0] + c * a.y_strides[1] + row * a.y_strides[2] + column * a.y_strides[3]]);
  const long long base = box.image * a.x_strides[0] + c * a.x_strides[1];
  if constexpr (Config::kFixed) {
    const FixedSums fixed{static_cast<unsigned long long*>(sums), flags, FixedScale(largest, a.bits).up};
    scatter(fixed, value, x, base, box, row, column, a.height, a.width, a.x_strides[2], a.x_strides[3]);
  } else {
    scatter(FloatSums<A>{static_cast<A*>(sums)}, value, x, base, box, row, column, a.height, a.width, a.x_strides[2],
            a.x_strides[3]);
  }
}
