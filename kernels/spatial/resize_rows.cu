// y[plane, p, q] = sum over the taps of q of weight * (sum over the taps of p of weight * x[plane, tap of p, tap of q]); the gradient is the
// same with the transposed taps. A first axis of three is summed with p.
//
// Layout:  x (planes, depth, height, width) and y (planes, o, p, q), C order; the taps are tables of resize_taps.cu. A block owns neighbouring
//          rows of y: it sums the rows of x into one for each of them, in shared memory, then along the rows. There the elements of kRows
//          rows stand beside each other, a gap behind every fourth column. First a thread owns one row and vectors of it; then kRows rows
//          and kColumns neighbours at a time, with 2^lanes threads beside each other along a row. A block has 2^log_rows rows, no more than threads.
// Needs:   pointers aligned to kVector elements of x and kColumns of y, the width and q multiples of them.
// Bound:   memory.

#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kRank = 2;
  static constexpr int kRows = 8;
  static constexpr int kColumns = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY resize_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRank = Config::kRank, kRows = Config::kRows, kColumns = Config::kColumns, kVector = Config::kVector, kThreads = Config::kThreads;
using V = Vec<T, kVector>;

// Where the elements of a column stand in shared memory, among the rows of a group.
__device__ __forceinline__ int place_of(int column) { return (column + column / 4) * kRows; }

// The taps of all elements along an axis.
struct Table {
  const int *firsts, *counts;
  const A* weights;
  long long elements;

  // body(tap, weight) for the taps of element i.
  template <typename Body>
  __device__ __forceinline__ void each(int i, Body body) const {
    const int first = firsts[i], count = counts[i];
    const A* own = weights + i;
#pragma unroll 2
    for (int k = 0; k < count; ++k) body(first + k, own[k * elements]);
  }
};

// kVector neighbours of the row of x that row (slice, row) of y is made of.
__device__ __forceinline__ void gather(A (&sum)[kVector], const T* source, int slice, int row, const Table& deep, const Table& down,
                                       long long height, long long width) {
  const auto take = [&](const T* line, A weight) {
    const V part = load<T, kVector>(line);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[v] += widen(part.at[v]) * weight;
  };
  const auto plane = [&](const T* start, A weight) {
    down.each(row, [&](int tap, A its) { take(start + tap * width, weight * its); });
  };
  if constexpr (kRank == 1) take(source, A(1));
  if constexpr (kRank == 2) down.each(row, [&](int tap, A weight) { take(source + tap * width, weight); });
  if constexpr (kRank == 3) deep.each(slice, [&](int tap, A weight) { plane(source + tap * height * width, weight); });
}

// kRows rows of a column: `lines` holds the group's.
__device__ __forceinline__ void sum_column(A (&total)[kRows], const A* lines, const Table& across, int column) {
  constexpr int kPiece = kRows * sizeof(A) < 16 ? kRows : 16 / sizeof(A);
  across.each(column, [&](int tap, A weight) {
    const A* found = lines + place_of(tap);
#pragma unroll
    for (int r = 0; r < kRows; r += kPiece) {
      const Vec<A, kPiece> part = load<A, kPiece>(found + r);
#pragma unroll
      for (int k = 0; k < kPiece; ++k) total[r + k] += part.at[k] * weight;
    }
  });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ first_o, const int* __restrict__ count_o,
                   const A* __restrict__ weight_o, const int* __restrict__ first_p, const int* __restrict__ count_p,
                   const A* __restrict__ weight_p, const int* __restrict__ first_q, const int* __restrict__ count_q,
                   const A* __restrict__ weight_q, long long rows, long long o, long long p, long long q, long long depth, long long height,
                   long long width, long long log_rows, long long lanes) {
  extern __shared__ __align__(16) char dnn_smem[];
  A* smem_lines = reinterpret_cast<A*>(dnn_smem);
  const int tid = threadIdx.x, size = static_cast<int>(width), columns = static_cast<int>(q), group_size = place_of(size + 3);
  const int own = tid & ((1 << log_rows) - 1);
  const long long first = static_cast<long long>(blockIdx.x) << log_rows;
  long long plane = first + own < rows ? first + own : rows - 1;
  const int row = static_cast<int>(split(plane, p)), slice = kRank == 3 ? static_cast<int>(split(plane, o)) : 0;
  const T* source = x + plane * depth * height * width;
  A* line = smem_lines + own / kRows * group_size + own % kRows;
  const Table deep{first_o, count_o, weight_o, o}, down{first_p, count_p, weight_p, p};
  for (int c = (tid >> log_rows) * kVector; c < size; c += (kThreads >> log_rows) * kVector) {
    A sum[kVector] = {};
    gather(sum, source + c, slice, row, deep, down, height, width);
#pragma unroll
    for (int v = 0; v < kVector; ++v) line[place_of(c + v)] = sum[v];
  }
  __syncthreads();

  const int group = tid >> lanes;
  const long long left = rows - first - group * kRows;
  const Table across{first_q, count_q, weight_q, q};
  T* target = y + (first + group * kRows) * q;
  for (int c = (tid & ((1 << lanes) - 1)) * kColumns; c < columns; c += kColumns << lanes) {
    A total[kColumns][kRows] = {};
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum_column(total[j], smem_lines + group * group_size, across, c + j);
    T* to = target + c;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= left) break;
      Vec<T, kColumns> result;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) result.at[j] = narrow<T>(total[j][r]);
      store(to, result);
      to += q;
    }
  }
}
