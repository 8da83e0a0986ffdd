// Pixels of few channels in shared memory, as rows of neighbours: what the kernels for inputs of few channels read windows from.
#pragma once

#include "dnnarray/conv.cuh"
#include "dnnarray/vec.cuh"

namespace dnnarray {

// The pixels that a region of kSide x kSide outputs meets. A row of the window is S * C neighbours, filled up to kColumns.
template <typename T, int kSide, int kColumns>
struct ThinPixels {
  const T* x;
  ConvAxes axes;
  int channels;

  __device__ __forceinline__ int rows() const { return (kSide - 1) * axes.h.stride + (axes.h.window - 1) * axes.h.dilation + 1; }
  __device__ __forceinline__ int row_elements() const { return ((kSide - 1) * axes.w.stride + axes.w.window) * channels; }
  // Bytes of a row: a pad for what the last columns read behind the window, and that counts for nothing.
  __device__ __forceinline__ int pitch() const { return (row_elements() + kColumns + 1) / 2 * 4; }
  __device__ __forceinline__ int step() const { return axes.w.stride * channels * 2; }    // bytes from an output to the next
  __device__ __forceinline__ int down() const { return axes.h.stride * pitch(); }         // from a row of outputs to the next
  __device__ __forceinline__ int tap_row() const { return axes.h.dilation * pitch(); }    // from a row of the window to the next

  // Zeros outside of the image; kBatch loads of a thread are on their way at a time.
  template <int kThreads>
  __device__ __forceinline__ void load(char* smem, long long image, int first_p, int first_q) const {
    constexpr int kLine = 128, kLines = kThreads / kLine, kBatch = 8;
    const int first_h = first_p * axes.h.stride - axes.h.before, begin = (first_q * axes.w.stride - axes.w.before) * channels;
    const int elements = row_elements(), width = axes.w.space * channels, count = rows();
    const T* from = x + image * axes.h.space * width;
    for (int i = threadIdx.x % kLine; i < elements; i += kLine) {
      const bool inside = begin + i >= 0 && begin + i < width;
      for (int first = threadIdx.x / kLine; first < count; first += kBatch * kLines) {
        T found[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int row = first + b * kLines, h = first_h + row;
          const bool there = inside && row < count && h >= 0 && h < axes.h.space;
          found[b] = there ? from[static_cast<long long>(h) * width + begin + i] : narrow<T>(0.0f);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int row = first + b * kLines;
          if (row < count) reinterpret_cast<T*>(smem + row * pitch())[i] = found[b];
        }
      }
    }
  }
};

// A region of outputs: its image, its first row and column.
struct ThinRegion {
  long long image;
  int p, q;

  __device__ __forceinline__ static ThinRegion of(long long i, int regions_h, int regions_w, int side) {
    const Split by_w = split(i, regions_w), by_h = split(by_w.quotient, regions_h);
    return {by_h.quotient, by_h.rest * side, by_w.rest * side};
  }
};

}  // namespace dnnarray
