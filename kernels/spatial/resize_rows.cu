// y[plane, p, q] = sum over the taps of q of weight * (sum over the taps of p of weight * x[plane, tap of p, tap of q]); the gradient is the
// same with the transposed taps. A first axis of three is summed with p.
//
// Layout:  x (planes, depth, height, width) and y (planes, o, p, q), C order; the taps are tables of resize_taps.cu, or (kComputed,
//          for small arrays) computed where they are needed. A block owns neighbouring rows of y: it sums the rows of x into one for each
//          of them, in shared memory, kStride apart, then along the rows. For that, 2^load_lanes and 2^store_lanes threads stand beside
//          each other along a row. A thread owns kRows rows of y and kColumns neighbours at a time.
// Needs:   pointers aligned to kVector elements of x and kColumns of y, the width and q multiples of them, the width no more than kStride.
// Bound:   memory; where there are many taps, the look-ups in shared memory.

#include "dnnarray/resize.cuh"
#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kComputed = false;
  static constexpr bool kTransposed = false;
  static constexpr int kRank = 2;
  static constexpr int kRows = 8;
  static constexpr int kStride = 128;
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
constexpr int kStride = Config::kStride, kMostRows = kRows * kThreads / 8;  // of a block: no fewer than 8 threads stand in a row
constexpr bool kTransposed = Config::kTransposed;
using V = Vec<T, kVector>;

// Where a row of y comes from: its plane of x, and its place along both slower axes.
struct Origin {
  long long plane;
  int slice, row;
};

// The taps of all elements along an axis, from a table or (kComputed) from its definition.
struct Line {
  const int *firsts, *counts;
  const A* weights;
  long long elements;
  Resize resize;

  // `options`: the mode, 16 for align_corners, 32 for a step that is exactly source / target.
  __device__ __forceinline__ Line(const int* first, const int* count, const A* weight, long long read, long long written, long long options,
                                  double step)
      : firsts(first), counts(count), weights(weight), elements(written),
        resize{kTransposed ? written : read, kTransposed ? read : written, options & 15, options & 16, options & 32, step} {}

  // body(tap, weight) for the taps of element i.
  template <typename Body>
  __device__ __forceinline__ void each(int i, Body body) const {
    if constexpr (Config::kComputed) {
      const Taps found = taps_of<kTransposed>(resize, i);
      for (int k = 0; k < found.count; ++k) body(static_cast<int>(found.first) + k, A(weight_of<kTransposed>(resize, i, found.first + k)));
    } else {
      const int first = firsts[i], count = counts[i];
      const A* own = weights + i;
#pragma unroll 2
      for (int k = 0; k < count; ++k) body(first + k, own[k * elements]);
    }
  }
};

// kVector neighbours of the row of x that a row of y is made of.
__device__ __forceinline__ void gather(A (&sum)[kVector], const T* source, const Origin& from, const Line& deep, const Line& down,
                                       long long height, long long width) {
  const auto take = [&](const T* row, A weight) {
    const V part = load<T, kVector>(row);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[v] += widen(part.at[v]) * weight;
  };
  const auto plane = [&](const T* start, A weight) {
    down.each(from.row, [&](int tap, A its) { take(start + tap * width, weight * its); });
  };
  if constexpr (kRank == 1) take(source, A(1));
  if constexpr (kRank == 2) down.each(from.row, [&](int tap, A weight) { take(source + tap * width, weight); });
  if constexpr (kRank == 3) deep.each(from.slice, [&](int tap, A weight) { plane(source + tap * height * width, weight); });
}

// kVector neighbours into shared memory, 16 bytes at a time where they are that many.
__device__ __forceinline__ void keep(A* to, const A (&sum)[kVector]) {
  constexpr int kPiece = kVector * sizeof(A) < 16 ? kVector : 16 / sizeof(A);
#pragma unroll
  for (int v = 0; v < kVector; v += kPiece) {
    Vec<A, kPiece> part;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) part.at[k] = sum[v + k];
    store(to + v, part);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, Config::kComputed ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ first_o, const int* __restrict__ count_o,
                   const A* __restrict__ weight_o, const int* __restrict__ first_p, const int* __restrict__ count_p,
                   const A* __restrict__ weight_p, const int* __restrict__ first_q, const int* __restrict__ count_q,
                   const A* __restrict__ weight_q, long long rows, long long o, long long p, long long q, long long depth, long long height,
                   long long width, long long load_lanes, long long store_lanes, long long options_o, long long options_p,
                   long long options_q, double step_o, double step_p, double step_q) {
  extern __shared__ __align__(16) char dnn_smem[];
  __shared__ Origin origins[kMostRows];
  A* lines = reinterpret_cast<A*>(dnn_smem);
  const int tid = threadIdx.x, size = static_cast<int>(width), columns = static_cast<int>(q), here = kRows * (kThreads >> store_lanes);
  const long long first = static_cast<long long>(blockIdx.x) * here;
  if (tid < here) {
    long long plane = first + tid < rows ? first + tid : rows - 1;
    const int row = static_cast<int>(split(plane, p)), slice = kRank == 3 ? static_cast<int>(split(plane, o)) : 0;
    origins[tid] = {plane * depth * height * width, slice, row};
  }
  __syncthreads();

  const Line deep(first_o, count_o, weight_o, depth, o, options_o, step_o), down(first_p, count_p, weight_p, height, p, options_p, step_p);
  const int lane = tid & ((1 << load_lanes) - 1);
  for (int r = tid >> load_lanes; r < here; r += kThreads >> load_lanes) {
    const Origin from = origins[r];
    for (int c = lane * kVector; c < size; c += kVector << load_lanes) {
      A sum[kVector] = {};
      gather(sum, x + from.plane + c, from, deep, down, height, width);
      keep(lines + r * kStride + c, sum);
    }
  }
  __syncthreads();

  const Line across(first_q, count_q, weight_q, width, q, options_q, step_q);
  const int group = (tid >> store_lanes) * kRows;
  const int left = rows - first - group < kRows ? static_cast<int>(rows - first - group) : kRows;
  const A* line = lines + group * kStride;
  T* target = y + (first + group) * q;
  for (int c = (tid & ((1 << store_lanes) - 1)) * kColumns; c < columns; c += kColumns << store_lanes) {
    A total[kRows][kColumns] = {};
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      across.each(c + j, [&](int tap, A weight) {
        const A* found = line + tap;
#pragma unroll
        for (int r = 0; r < kRows; ++r) total[r][j] += found[r * kStride] * weight;
      });
    }
    T* to = target + c;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Vec<T, kColumns> result;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) result.at[j] = narrow<T>(total[r][j]);
      if (r < left) store(to, result);
      to += q;
    }
  }
}
