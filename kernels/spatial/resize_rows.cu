// y[plane, p, q] = sum over the taps of q of weight * (sum over the taps of p of weight * x[plane, tap of p, tap of q]); the gradient is the
// same with the transposed taps. A first axis of three is summed with p.
//
// Layout:  x (planes, depth, height, width) and y (planes, o, p, q), C order. A block owns `here` neighbouring rows of y: it sums the rows of x
//          into one for each of them, in shared memory, kStride apart, then along the rows. For that, 2^load_lanes and 2^store_lanes
//          threads stand beside each other along a row. A thread takes kRows rows of y and kColumns neighbours at a time.
//          kTaps: that each element has along each axis, found by the block itself; a row with fewer gives the rest shares of its last one.
//          0: the tables of resize_taps.cu say how many.
// Needs:   pointers aligned to kVector elements of x and kColumns of y, the width and q multiples of them, the width no more than kStride,
//          `here` a multiple of kRows (kThreads >> store_lanes).
// Bound:   memory; where there are many taps, the look-ups in shared memory.

#include "dnnarray/resize.cuh"
#include "dnnarray/sampling.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kTaps = 0;
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
constexpr int kTaps = Config::kTaps, kRank = Config::kRank, kRows = Config::kRows, kColumns = Config::kColumns, kVector = Config::kVector;
constexpr int kThreads = Config::kThreads, kStride = Config::kStride, kKept = kTaps > 0 ? kTaps : 1;
constexpr int kTogether = kTaps == 0 || kRank == 3 ? 1 : 4 / kTaps;  // rows whose taps a thread fetches at once

// The taps of all elements along an axis, from a table or (kTaps) from its definition.
struct Line {
  const int *firsts, *counts;
  const A* weights;
  long long elements;
  Resize resize;

  // `options`: the mode, 16 for align_corners, 32 for a step that is exactly source / target.
  __device__ __forceinline__ Line(const int* first, const int* count, const A* weight, long long read, long long written, long long options,
                                  double step)
      : firsts(first), counts(count), weights(weight), elements(written),
        resize{read, written, options & 15, options & 16, options & 32, step} {}
};

// Those of one element: with kTaps, the weights too; else where they begin in the table.
struct Taps1 {
  int first, last;
  A weight[kKept];
  const A* table;

  Taps1() = default;
  __device__ __forceinline__ Taps1(const Line& line, int i) {
    if constexpr (kTaps > 0) {
      const Taps found = line.resize.taps(i);
      first = static_cast<int>(found.first), last = static_cast<int>(found.count) - 1;
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        const double all = line.resize.weight(i, first + (k < last ? k : last));
        weight[k] = static_cast<A>(k < last ? all : all / (kTaps - last));
      }
    } else {
      first = line.firsts[i], last = line.counts[i] - 1;
      table = line.weights + i;
    }
  }

  // body(tap, weight) for each.
  template <typename Body>
  __device__ __forceinline__ void each(long long elements, Body body) const {
    if constexpr (kTaps > 0) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) body(first + (k < last ? k : last), kTaps == 1 ? A(1) : weight[k]);
    } else {
#pragma unroll 4
      for (int k = 0; k <= last; ++k) body(first + k, table[k * elements]);
    }
  }
};

// Where a row of y comes from: its plane of x, and the taps along both slower axes.
struct Origin {
  const T* plane;
  Taps1 deep, down;
};

// kVector neighbours of the row of x that a row of y is made of.
__device__ __forceinline__ void gather(A (&sum)[kVector], const Origin& from, int c, const Line& deep, const Line& down, long long height,
                                       long long width) {
  const auto take = [&](const T* row, A weight) {
    A part[kVector];
    widen_all<T>(part, load<T, kVector>(row + c));
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[v] += part[v] * weight;
  };
  const auto plane = [&](const T* start, A weight) {
    from.down.each(down.elements, [&](int tap, A its) { take(start + tap * width, weight * its); });
  };
  if constexpr (kRank == 1) take(from.plane, A(1));
  if constexpr (kRank == 2) from.down.each(down.elements, [&](int tap, A weight) { take(from.plane + tap * width, weight); });
  if constexpr (kRank == 3) {
    from.deep.each(deep.elements, [&](int tap, A weight) { plane(from.plane + tap * height * width, weight); });
  }
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

// kRows rows of kColumns neighbours of y, of which `left` rows are there, from as many lines.
__device__ __forceinline__ void put(T* to, const A* line, const Taps1 (&across)[kColumns], long long elements, long long q, int left) {
  A total[kRows][kColumns] = {};
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    across[j].each(elements, [&](int tap, A weight) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) total[r][j] += line[tap + r * kStride] * weight;
    });
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < left) store(to, narrow_all<T>(total[r]));
    to += q;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ first_o, const int* __restrict__ count_o,
                   const A* __restrict__ weight_o, const int* __restrict__ first_p, const int* __restrict__ count_p,
                   const A* __restrict__ weight_p, const int* __restrict__ first_q, const int* __restrict__ count_q,
                   const A* __restrict__ weight_q, long long rows, long long here, long long o, long long p, long long q, long long depth,
                   long long height, long long width, long long load_lanes, long long store_lanes, long long options_o, long long options_p,
                   long long options_q, double step_o, double step_p, double step_q) {
  extern __shared__ __align__(16) char dnn_smem[];
  const int tid = threadIdx.x, size = static_cast<int>(width), columns = static_cast<int>(q), count = static_cast<int>(here);
  A* lines = reinterpret_cast<A*>(dnn_smem);
  Origin* origins = reinterpret_cast<Origin*>(lines + count * kStride);
  const long long first = static_cast<long long>(blockIdx.x) * count;
  const Line deep(first_o, count_o, weight_o, depth, o, options_o, step_o), down(first_p, count_p, weight_p, height, p, options_p, step_p);
  for (int i = tid; i < count; i += kThreads) {
    long long plane = first + i < rows ? first + i : rows - 1;
    const int row = static_cast<int>(split(plane, p)), slice = kRank == 3 ? static_cast<int>(split(plane, o)) : 0;
    Origin& from = origins[i];
    from.plane = x + plane * depth * height * width;
    if (kRank > 1) from.down = Taps1(down, row);
    if (kRank > 2) from.deep = Taps1(deep, slice);
  }
  __syncthreads();

  const int load_step = kThreads >> load_lanes;
  for (int c = (tid & ((1 << load_lanes) - 1)) * kVector; c < size; c += kVector << load_lanes) {
#pragma unroll kTogether
    for (int r = tid >> load_lanes; r < count; r += load_step) {
      A sum[kVector] = {};
      gather(sum, origins[r], c, deep, down, height, width);
      keep(lines + r * kStride + c, sum);
    }
  }
  __syncthreads();

  const Line across(first_q, count_q, weight_q, width, q, options_q, step_q);
  for (int c = (tid & ((1 << store_lanes) - 1)) * kColumns; c < columns; c += kColumns << store_lanes) {
    Taps1 taps[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) taps[j] = Taps1(across, c + j);
    for (int r = (tid >> store_lanes) * kRows; r < count; r += kRows * (kThreads >> store_lanes)) {
      const long long left = rows - first - r;
      put(y + (first + r) * q + c, lines + r * kStride, taps, q, q, left < kRows ? static_cast<int>(left) : kRows);
    }
  }
}
