// Weight gradients as products of pixels: what the kernels whose operands TMA brings have in common.
#pragma once

#include "conv/geometry.cuh"
#include "dnnarray/core/vec.cuh"

namespace dnnarray {

// Partial sums of a split, (groups K, taps C): channels of a group.
struct WeightSums {
  float* partial;
  int groups, outs, taps, channels;

  // Where the channels of a tap begin.
  __device__ __forceinline__ float* at(long long split, int group, int k, int tap) const {
    return partial + (((split * groups + group) * outs + k) * taps + tap) * static_cast<long long>(channels);
  }
};

constexpr int kWhole = 64;  // channels of a panel

// The weight itself, where there is but one split: steps along K and the window in elements, the channels of a tap
// dense.
template <typename T>
struct WeightResult {
  T* weight;
  long long k, d, h, w;

  __device__ __forceinline__ T* at(const ConvAxes& axes, int row, int tap) const {
    const Place place = Place::of(tap, axes.h.window, axes.w.window);
    return weight + row * k + place.d * d + place.h * h + place.w * w;
  }
};

// A thread's sums of 64 neighbouring channels, of two rows 8 apart, as wgmma leaves them: channels `first` to `left`.
// Not `store`: its assembly would hold back the products.
template <int kFirst, typename R, int kCount>
__device__ __forceinline__ void write_sums(R* out, const float (&sums)[kCount], int half, int left, int first = 0) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (column + 8 * j >= left || column + 8 * j < first) continue;
    const float pair[2] = {sums[kFirst + 4 * j + 2 * half], sums[kFirst + 4 * j + 2 * half + 1]};
    *reinterpret_cast<Vec<R, 2>*>(out + column + 8 * j) = narrow_all<R, 2>(pair);
  }
}

// The same into partial sums, from channel c of a tap on. kSize < kWhole: groups of so many channels have been put
// together to kWhole, and row k keeps those of its own group alone.
template <int kFirst, int kSize, int kCount>
__device__ __forceinline__ void write_partial(const WeightSums& a, const float (&sums)[kCount], int half,
                                              long long split, int group, int k, int tap, int c) {
  if constexpr (kSize == kWhole) {
    write_sums<kFirst>(a.at(split, group, k, tap) + c, sums, half, a.channels - c);
  } else {
    const int own = k / kSize * kSize;
    float* out =
        a.partial + (((split * a.groups + group) * kWhole + k) * a.taps + tap) * static_cast<long long>(kSize) - own;
    write_sums<kFirst>(out, sums, half, own + kSize, own);
  }
}

}  // namespace dnnarray
