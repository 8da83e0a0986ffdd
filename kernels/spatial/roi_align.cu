// y[k, c, p, q] pools the samples of bin (p, q) of box k: their mean, or the largest weighted pixel of all samples.
//
// Layout:  x and y by strides, boxes (K, 5). A thread owns a bin of kVector channels; kChannelsLast: they are
//          neighbours, and neighbouring threads have neighbouring channels, else neighbouring bins (and kVector is 1).
// Needs:   pointers aligned to kVector elements, C a multiple of kVector.
// Bound:   the look-ups in L1, four for each sample.

#include "dnnarray/core/vec.cuh"
#include "spatial/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr bool kAligned = false;
  static constexpr bool kChannelsLast = false;
  static constexpr int kVector = 1;
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
};
#define DNNARRAY_ENTRY spatial_roi_align_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;

__device__ __forceinline__ void pool(A (&result)[kVector], const T* plane, const Box<A>& box, long long p, long long q,
                                     int height, int width, long long x_h, long long x_w) {
  const long long samples = box.down.count * box.across.count;
  long long i_first, i_end, j_first, j_end, counted = 0;
  box.down.range(p, height, i_first, i_end);
  box.across.range(q, width, j_first, j_end);
#pragma unroll
  for (int v = 0; v < kVector; ++v) result[v] = Config::kMaximum && samples > 0 ? -infinity(A(0)) : A(0);
  for (long long i = i_first; i < i_end; ++i) {
    const Sample<A> down(box.down.place(p, i), height);
    if (!down.inside) continue;
    for (long long j = j_first; j < j_end; ++j) {
      const Sample<A> across(box.across.place(q, j), width);
      if (!across.inside) continue;
      ++counted;
#pragma unroll
      for (int tap = 0; tap < 4; ++tap) {
        const V values = load<T, kVector>(plane + down.pixel[tap / 2] * x_h + across.pixel[tap % 2] * x_w);
        const A weight = down.weight[tap / 2] * across.weight[tap % 2];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const A part = widen(values.at[v]) * weight;
          result[v] = Config::kMaximum ? Max()(result[v], part) : result[v] + part;
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    if (!Config::kMaximum && samples > 0) result[v] /= A(samples);
    if (Config::kMaximum && counted < samples) result[v] = Max()(result[v], A(0));  // samples that do not count are 0
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ boxes, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const long long chunks = a.channels / kVector;
  long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (k >= a.count * chunks * a.p * a.q) return;
  long long c = Config::kChannelsLast ? split(k, chunks) : 0;
  const long long column = split(k, a.q), row = split(k, a.p);
  if (!Config::kChannelsLast) c = split(k, chunks);
  c *= kVector;
  const Box<A> box = Box<A>::read(boxes + k * 5, a.images, A(a.scale), Config::kAligned, a.p, a.q, a.ratio);
  A values[kVector];
  if (box.valid)
    pool(values, x + box.image * a.x_strides[0] + c * a.x_strides[1], box, row, column, a.height, a.width,
         a.x_strides[2], a.x_strides[3]);
  V result;
#pragma unroll
  for (int v = 0; v < kVector; ++v) result.at[v] = narrow<T>(box.valid ? values[v] : quiet_nan(A(0)));
  store(y + k * a.y_strides[0] + c * a.y_strides[1] + row * a.y_strides[2] + column * a.y_strides[3], result);
}
