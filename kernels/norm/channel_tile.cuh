// Channels in the registers of a block: pieces of neighbouring columns, of which a thread has the same ones of every
// piece it works on.
#pragma once

#include "dnnarray/core/division.cuh"
#include "norm/channels.cuh"

namespace dnnarray {

// What a block of kThreads threads holds of an array of `pieces` of `columns`: `tile` columns of each, in vectors of
// kVector, `width` columns to a channel and whole channels. A thread has column `column` and the following of the
// pieces `slot`, `slot` + `step`, ...
template <typename A, int kVector, int kThreads>
struct ColumnTile {
  static constexpr int kMost = 128;  // channels
  static constexpr int kPart = kVector * sizeof(A) > 16 ? 16 / sizeof(A) : kVector;
  // A number for each column of the pieces that are worked on at a time, two vectors or more, with a gap behind each so
  // that they begin in different banks.
  using Tables = A[2][kThreads * kVector + kThreads * kPart / 2];

  Divisor width;
  int run, step, slot, column, pieces, rows, channels, first_channel;
  long long base, pitch;

  __device__ __forceinline__ ColumnTile(long long all_pieces, long long columns, long long tile,
                                        const Divisor& of_channel)
      : width(of_channel), pieces(static_cast<int>(all_pieces)) {
    const int first = static_cast<int>(blockIdx.x) * static_cast<int>(tile);
    run = min(static_cast<int>(tile), static_cast<int>(columns) - first);
    const int vectors = run / kVector;
    step = kThreads / max(vectors, 2);
    slot = threadIdx.x / vectors;
    column = threadIdx.x % vectors * kVector;
    if (slot >= step) slot = pieces;  // more threads than whole pieces, or than tables have room for
    rows = min(step, pieces);
    channels = static_cast<int>(width.quotient(static_cast<unsigned>(run)));
    first_channel = static_cast<int>(width.quotient(static_cast<unsigned>(first)));
    base = first + column + slot * columns, pitch = step * columns;
  }
  __device__ __forceinline__ bool there(int k) const { return slot + k * step < pieces; }
  __device__ __forceinline__ long long at(int k) const { return base + k * pitch; }
  // The channel of column v of this thread, in the block.
  __device__ __forceinline__ int channel(int v) const {
    return static_cast<int>(width.quotient(static_cast<unsigned>(column + v)));
  }

  // The sums of a thread for its columns, for all threads.
  template <int kCount>
  __device__ __forceinline__ void put(Tables& smem, const A (&sums)[2][kVector]) const {
    const int own = slot * (run + kPart) + column;
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
#pragma unroll
      for (int v = 0; v < kVector; v += kPart) {
        Vec<A, kPart> part;
#pragma unroll
        for (int i = 0; i < kPart; ++i) part.at[i] = sums[t][v + i];
        if (slot < rows) store(&smem[t][own + v], part);
      }
    }
    __syncthreads();
  }

  // A warp adds up the sums of the columns of a channel of the block; every lane gets them.
  template <int kCount>
  __device__ __forceinline__ void over(A (&sums)[2], const Tables& smem, int which) const {
    const int own = static_cast<int>(width.n);
    sums[0] = sums[1] = A(0);
#pragma unroll 2
    for (int i = threadIdx.x % kWarp; i < rows * own; i += kWarp) {
      const int row = static_cast<int>(width.quotient(static_cast<unsigned>(i))),
                place = row * (run + kPart - own) + which * own + i;
#pragma unroll
      for (int t = 0; t < kCount; ++t) sums[t] += smem[t][place];
    }
#pragma unroll
    for (int t = 0; t < kCount; ++t) sums[t] = warp_sum(sums[t]);
  }
};

}  // namespace dnnarray
