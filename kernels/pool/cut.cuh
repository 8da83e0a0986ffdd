// How blocks of unpooling share an axis.
#pragma once

#include "dnnarray/core/division.cuh"

namespace dnnarray {

struct Range {
  int begin, end;
  __device__ __forceinline__ int length() const { return end - begin; }
};

// How an axis is cut: x[own(k)] lies where y[tile(k)] does, which is in proportion, or by whole cells.
struct Cut {
  int x, y, chunks;
  Divisor by_tile,
      by_share;  // the extent of a tile of y; what the rows of y times `share` are divided by for those of x
  int share;

  __device__ __forceinline__ int y_at(int k) const { return k < chunks ? k * static_cast<int>(by_tile.n) : y; }
  __device__ __forceinline__ int x_at(int k) const {
    return k < chunks ? static_cast<int>(by_share.quotient(k * by_tile.n * share)) : x;
  }
  __device__ __forceinline__ Range tile(int k) const { return {y_at(k), y_at(k + 1)}; }
  __device__ __forceinline__ Range own(int k) const { return {x_at(k), x_at(k + 1)}; }
  __device__ __forceinline__ Range seen(int k) const { return {max(x_at(k) - 1, 0), min(x_at(k + 1) + 1, x)}; }
};

}  // namespace dnnarray
