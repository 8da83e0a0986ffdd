// Norms over the channels of channels-last memory in two launches: rows of channels folded, so that vectors are whole
// whatever the number of channels.
#pragma once

#include "norm/channels.cuh"

namespace dnnarray {

// `fold` rows one after the other are a row of `columns` = fold * channels columns, a multiple of kVector; column c is
// of channel c % channels. The last row may end early: `left` columns of it are there.
struct Folded {
  int columns, channels, rows, left, parts, part;  // parts: of the sums, with so many rows each

  // Values of a column in the rows of a part.
  __device__ __forceinline__ int values(int which, int column) const {
    const int begin = which * part, end = min(begin + part, rows);
    return end - begin - (end == rows && column >= left);
  }
};

// What a thread of a block has: kVector columns from `column` on, of rows `row`, `row` + kStep, ... before `end`;
// blocks are slices of kLanes vectors by runs of rows.
template <typename T, int kVector, int kLanes, int kThreads>
struct FoldedPlace {
  static constexpr int kSlice = kVector * kLanes, kStep = kThreads / kLanes;
  const Folded& all;
  int first, column, row, end;

  __device__ __forceinline__ FoldedPlace(const Folded& of, int rows)
      : all(of),
        first(static_cast<int>(blockIdx.x) * kSlice),
        column(first + static_cast<int>(threadIdx.x) % kLanes * kVector),
        row(static_cast<int>(blockIdx.y) * rows + static_cast<int>(threadIdx.x) / kLanes),
        end(min((static_cast<int>(blockIdx.y) + 1) * rows, of.rows)) {
    if (column >= of.columns) end = 0;
  }
  __device__ __forceinline__ bool there(int k) const {
    const int r = row + k * kStep;
    return r < end && (r + 1 < all.rows || column + kVector <= all.left);
  }
  __device__ __forceinline__ unsigned at(int k) const {
    return static_cast<unsigned>(row + k * kStep) * static_cast<unsigned>(all.columns) + column;
  }
  // The vector that is there in part alone, if it is this thread's: how many elements, and where.
  __device__ __forceinline__ int tail() const {
    const bool mine = row < end && end == all.rows && (all.rows - 1 - row) % kStep == 0;
    return mine && column < all.left && column + kVector > all.left ? all.left - column : 0;
  }
  __device__ __forceinline__ unsigned tail_at() const {
    return static_cast<unsigned>(all.rows - 1) * static_cast<unsigned>(all.columns) + column;
  }
  __device__ __forceinline__ int channel(int of_slice) const { return (first + of_slice) % all.channels; }

  template <int kVectors>
  __device__ __forceinline__ void fetch(Wordwise<T, kVector> (&to)[kVectors], const T* from, int k) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      to[i] = {};
      if (there(k + i)) to[i] = load_at_once<T, kVector>(from + at(k + i));
    }
  }
};

// Sums of kCount values over the lanes of a warp with the same lane % kLanes. With each exchange each half goes on with
// half of the values: done(sums, first) gets those from `first` on, some lanes perhaps the same ones.
template <int kLanes, int kStride = kWarp / 2, int kCount, typename A, typename F>
__device__ __forceinline__ void scatter_sums(const A (&values)[kCount], int first, F done) {
  if constexpr (kStride < kLanes) {
    done(values, first);
  } else if constexpr (kCount == 1) {
    const A sum[1] = {values[0] + __shfl_xor_sync(kAllLanes, values[0], kStride)};
    scatter_sums<kLanes, kStride / 2>(sum, first, done);
  } else {
    constexpr int kRest = kCount / 2;
    const bool upper = (threadIdx.x & kStride) != 0;
    A mine[kRest];
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      mine[i] = upper ? values[kRest + i] : values[i];
      mine[i] += __shfl_xor_sync(kAllLanes, upper ? values[i] : values[kRest + i], kStride);
    }
    scatter_sums<kLanes, kStride / 2>(mine, upper ? first + kRest : first, done);
  }
}

// Two sums of each column of a slice, over the threads of a block, in a fixed order: thread c gets those of column c of
// the slice, if there is one.
template <int kVector, int kLanes, int kThreads, typename A>
__device__ __forceinline__ void sum_columns(const A (&sums)[2 * kVector], A& plain, A& along,
                                            A (*smem)[2][kVector * kLanes]) {
  constexpr int kWarps = kThreads / kWarp;
  const int column = threadIdx.x % kLanes * kVector;
  scatter_sums<kLanes>(sums, 0, [&](const auto& some, int first) {
    constexpr int kSome = sizeof(some) / sizeof(some[0]);
#pragma unroll
    for (int i = 0; i < kSome; ++i)
      smem[threadIdx.x / kWarp][(first + i) / kVector][column + (first + i) % kVector] = some[i];
  });
  __syncthreads();
  if (threadIdx.x >= kVector * kLanes) return;
  plain = smem[0][0][threadIdx.x], along = smem[0][1][threadIdx.x];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) plain += smem[w][0][threadIdx.x], along += smem[w][1][threadIdx.x];
}

}  // namespace dnnarray
