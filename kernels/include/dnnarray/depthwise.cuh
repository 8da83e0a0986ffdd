// What the depthwise convolution and its gradients share: axes, channels of a vector with a multiplier, rows of an image in registers.
//
// `Kind` says kPlain: as many output channels as input channels; kGradient: x stands for the output's gradient, and m of its channels
// belong to one of the result.
#pragma once

#include "dnnarray/window.cuh"

namespace dnnarray {

// One spatial axis: outputs, input extent, taps, and the steps between them.
template <typename Kind>
struct ConvAxis {
  int out, space, window, stride, dilation, before;

  // The input that tap t of output i reads, or -1.
  __device__ __forceinline__ int input(int i, int t) const {
    int at;
    if constexpr (Kind::kGradient) {
      const int distance = i + before - t * dilation;
      at = distance < 0 ? -1 : quotient(distance, stride);
      if (at * stride != distance) return -1;
    } else {
      at = i * stride + t * dilation - before;
    }
    return at >= 0 && at < space ? at : -1;
  }
};

// Where the channels of a thread's vector stand in x and w: with a multiplier, part `i` of them.
template <typename Kind>
struct DepthwiseChannels {
  int first, multiplier;

  __device__ __forceinline__ int of_x(int j, int i) const {
    if (Kind::kPlain) return first + j;
    return Kind::kGradient ? (first + j) * multiplier + i : (first + j) / multiplier;
  }
  __device__ __forceinline__ int of_w(int j, int i) const {
    return Kind::kPlain || !Kind::kGradient ? first + j : (first + j) * multiplier + i;
  }
};

// A plane of an image: the distances between rows, columns and channels, and how many columns there are.
template <typename T, int kVector, typename Kind>
struct ImagePlane {
  using V = Vec<T, kVector>;
  using Channels = DepthwiseChannels<Kind>;
  const T* x;
  long long row, column, channel;
  int space;

  __device__ __forceinline__ V read(const T* p, const Channels& channels, int part) const {
    if constexpr (Kind::kPlain) {
      return load<T, kVector>(p + channels.first * channel);
    } else {
      V v;
#pragma unroll
      for (int j = 0; j < kVector; ++j) v.at[j] = p[channels.of_x(j, part) * channel];
      return v;
    }
  }

  // The columns first, first + step, ... of row `at`; zeros outside.
  template <int N>
  __device__ __forceinline__ void load_row(V (&v)[N], int first, int at, int rows, const Channels& channels, int part, int step = 1) const {
    const T* p = x + at * row + first * column;
    const bool there = at >= 0 && at < rows;
    if (there && first >= 0 && first + (N - 1) * step < space) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = read(p + i * step * column, channels, part);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = V{};
        if (there && first + i * step >= 0 && first + i * step < space) v[i] = read(p + i * step * column, channels, part);
      }
    }
  }
};

}  // namespace dnnarray
