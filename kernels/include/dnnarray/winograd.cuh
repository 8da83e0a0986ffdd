// Winograd's F(4x4, 3x3): the transforms of Toom and Cook for the points 0, 1, -1, 1/2, -2 and infinity, which lose less than 0, +-1, +-2.
#pragma once

#include "dnnarray/tf32.cuh"

namespace dnnarray {

constexpr int kWindow = 3, kTile = 4, kPatch = kTile + kWindow - 1, kPoints = kPatch * kPatch;

struct InputTransform {
  static constexpr int kRows = kPatch, kColumns = kPatch;
  static constexpr double kAt[kRows][kColumns] = {{1, -1.5, -2, 1.5, 1, 0}, {0, -1, 0.5, 2.5, 1, 0}, {0, 1, -2.5, 0.5, 1, 0},
                                                  {0, -2, -1, 2, 1, 0},     {0, 0.5, -1, -0.5, 1, 0}, {0, 1, -1.5, -2, 1.5, 1}};
};

struct WeightTransform {
  static constexpr int kRows = kPatch, kColumns = kWindow;
  static constexpr double kAt[kRows][kColumns] = {{1, 0, 0},
                                                  {1. / 3, 1. / 3, 1. / 3},
                                                  {-1. / 3, 1. / 3, -1. / 3},
                                                  {-16. / 15, -8. / 15, -4. / 15},
                                                  {1. / 15, -2. / 15, 4. / 15},
                                                  {0, 0, 1}};
};

struct OutputTransform {
  static constexpr int kRows = kTile, kColumns = kPatch;
  static constexpr double kAt[kRows][kColumns] = {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 0.5, -2, 0}, {0, 1, 1, 0.25, 4, 0}, {0, 1, -1, 0.125, -8, 1}};
};

// Row `kRow` of a transform times a column; factors of 0 and 1 cost nothing.
template <typename M, int kRow, int kColumn = 0, typename A>
__device__ __forceinline__ A row_times(const A (&x)[M::kColumns], A sum = 0) {
  if constexpr (kColumn == M::kColumns) {
    return sum;
  } else {
    constexpr double kFactor = M::kAt[kRow][kColumn];
    if constexpr (kFactor == 1) {
      sum += x[kColumn];
    } else if constexpr (kFactor == -1) {
      sum -= x[kColumn];
    } else if constexpr (kFactor != 0) {
      sum += A(kFactor) * x[kColumn];
    }
    return row_times<M, kRow, kColumn + 1>(x, sum);
  }
}

template <typename M, int kRow = 0, typename A>
__device__ __forceinline__ void times(const A (&x)[M::kColumns], A (&y)[M::kRows]) {
  if constexpr (kRow < M::kRows) {
    y[kRow] = row_times<M, kRow>(x);
    times<M, kRow + 1>(x, y);
  }
}

// Both sides: y = M x M^T.
template <typename M, typename A>
__device__ __forceinline__ void transform(const A (&x)[M::kColumns][M::kColumns], A (&y)[M::kRows][M::kRows]) {
  A half[M::kColumns][M::kRows];
#pragma unroll
  for (int i = 0; i < M::kColumns; ++i) times<M>(x[i], half[i]);
#pragma unroll
  for (int j = 0; j < M::kRows; ++j) {
    A column[M::kColumns], result[M::kRows];
#pragma unroll
    for (int i = 0; i < M::kColumns; ++i) column[i] = half[i][j];
    times<M>(column, result);
#pragma unroll
    for (int i = 0; i < M::kRows; ++i) y[i][j] = result[i];
  }
}

}  // namespace dnnarray
