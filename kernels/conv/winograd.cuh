// Winograd's F(2x2, 3x3) (Lavin and Gray, 2016): transforms of 0, 1, 1/2 and their sums, as exact as a plain sum of
// products.
#pragma once

#include "dnnarray/core/vec.cuh"

namespace dnnarray {

constexpr int kWindow = 3, kTile = 2, kPatch = kTile + kWindow - 1;

struct InputTransform {
  static constexpr int kRows = kPatch, kColumns = kPatch;
  static constexpr double kAt[kRows][kColumns] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
};

struct WeightTransform {
  static constexpr int kRows = kPatch, kColumns = kWindow;
  static constexpr double kAt[kRows][kColumns] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
};

struct OutputTransform {
  static constexpr int kRows = kTile, kColumns = kPatch;
  static constexpr double kAt[kRows][kColumns] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
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

}  // namespace dnnarray
