// What the depthwise convolution and its gradients share: axes, channels of a vector with a multiplier, rows of an
// image in registers.
//
// `Kind` says kPlain: as many output channels as input channels; kGradient: x stands for the output's gradient, and m
// of its channels belong to one of the result.
#pragma once

#include "conv/geometry.cuh"
#include "dnnarray/ptx/cp_async.cuh"

namespace dnnarray {

// a / b and what is left; plans refuse extents whose products pass 31 bits.
struct Quotient {
  int quotient, rest;
};
__device__ __forceinline__ Quotient divide(int a, int b) {
  const int q = static_cast<unsigned>(a) / static_cast<unsigned>(b);
  return {q, a - q * b};
}

// One spatial axis: outputs, input extent, taps, and the steps between them.
template <typename Kind>
struct DepthwiseAxis : ConvAxis {
  __device__ __forceinline__ explicit DepthwiseAxis(const ConvAxis& axis) : ConvAxis(axis) {}

  // The same axis with a stride that is known when the kernel is compiled.
  __device__ __forceinline__ DepthwiseAxis with_stride(int known) const {
    DepthwiseAxis axis = *this;
    axis.stride = known;
    return axis;
  }

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
  __device__ __forceinline__ void load_row(V (&v)[N], int first, int at, int rows, const Channels& channels, int part,
                                           int step = 1) const {
    const T* p = x + at * row + first * column;
    const bool there = at >= 0 && at < rows;
    if (there && first >= 0 && first + (N - 1) * step < space) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = read(p + i * step * column, channels, part);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = V{};
        if (there && first + i * step >= 0 && first + i * step < space)
          v[i] = read(p + i * step * column, channels, part);
      }
    }
  }
};

// Writes outputs, with a residual where kAdded; the bias stands in the sums from their beginning.
template <typename T, int kVector, bool kAdded, bool kRelu>
struct DepthwiseFinish {
  using A = arithmetic_t<T>;
  const T* residual;
  T* y;

  __device__ __forceinline__ void put(const A (&sum)[kVector], long long at) const {
    A value[kVector];
    if constexpr (kAdded) widen_all(value, load<T, kVector>(residual + at));
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      value[j] = kAdded ? value[j] + sum[j] : sum[j];
      if (kRelu && value[j] < A(0)) value[j] = A(0);
    }
    store(y + at, narrow_all<T, kVector>(value));
  }
};

// The sums begin with the bias, which may be null.
template <int kRows, int kStrip, int kVector, typename T>
__device__ __forceinline__ void begin_sums(arithmetic_t<T> (&sum)[kRows][kStrip][kVector], const T* bias, int channel) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const auto start = bias ? widen(bias[channel + j]) : arithmetic_t<T>(0);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) sum[m][t][j] = start;
    }
  }
}

// The weights of kChannels channels from `first` on, w (K, taps) in memory, as (taps, kChannels) in shared memory;
// zeros behind the last.
template <int kChannels, typename T>
__device__ __forceinline__ void stage_weights(arithmetic_t<T>* smem, const T* w, int first, int channels, int taps,
                                              bool flip) {
  for (int i = threadIdx.x; i < taps * kChannels; i += blockDim.x) {
    const int channel = i / taps, tap = i - channel * taps;
    const auto value =
        first + channel < channels ? widen(w[static_cast<long long>(first) * taps + i]) : arithmetic_t<T>(0);
    smem[(flip ? taps - 1 - tap : tap) * kChannels + channel] = value;
  }
}

// Where a tile begins in a plane, and its extents in shared memory.
struct TileOfPixels {
  int top, left, rows, columns;
};

// kChannels neighbouring channels of each pixel of a tile, kPixel elements from pixel to pixel; zeros outside of the
// plane and from `channels` on, of which there are a multiple of 16 bytes.
template <int kChannels, int kPixel, typename T>
__device__ __forceinline__ void bring_tile(T* smem, const T* plane, long long row_step, long long column_step,
                                           const TileOfPixels& tile, int height, int width, int channels) {
  constexpr int kPiece = 16 / sizeof(T), kPieces = kChannels / kPiece, kStep = 32 / kPieces;
  const int lane = threadIdx.x % 32, piece = lane % kPieces * kPiece, warps = blockDim.x / 32;
  for (int row = threadIdx.x / 32; row < tile.rows; row += warps) {
    const int at_h = tile.top + row;
    const bool row_there = piece < channels && at_h >= 0 && at_h < height;
    const T* from = plane + at_h * row_step + (tile.left + lane / kPieces) * column_step + piece;
    T* to = smem + (row * tile.columns + lane / kPieces) * kPixel + piece;
#pragma unroll 4
    for (int column = lane / kPieces; column < tile.columns; column += kStep) {
      const bool there = row_there && static_cast<unsigned>(tile.left + column) < static_cast<unsigned>(width);
      cp_async_cg(shared_address(to), there ? from : plane, there);
      from += kStep * column_step;
      to += kStep * kPixel;
    }
  }
}

}  // namespace dnnarray
