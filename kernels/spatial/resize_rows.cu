// y[plane, p, q] = sum over the taps of q of weight * (sum over the taps of p of weight * x[plane, tap of p, tap of
// q]); the gradient is the same with the transposed taps. A first axis of three is summed with p.
//
// Layout:  x (planes, depth, height, width) and y (planes, o, p, q), C order. A block owns `here` neighbouring rows of
//          y: it sums the rows of x into one for each of them, in shared memory, kStride apart, then along the rows.
//          For that, 2^load_lanes and 2^store_lanes threads stand beside each other along a row. A thread takes kRows
//          rows of y and kColumns neighbours at a time. Taps are in the tables of resize_taps.cu, or (kComputed, for
//          small arrays that are no gradients) found by the block itself. kBatch of them are asked for before the first
//          is used: as many as most elements have; kComputed: as any has.
// Needs:   pointers aligned to kVector elements of x and kColumns of y, the width and q multiples of them, the width no
//          more than kStride, `here` a multiple of kRows (kThreads >> store_lanes).
// Bound:   memory; where there are many taps, the look-ups in shared memory.

#include "dnnarray/core/vec.cuh"
#include "spatial/resize.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kComputed = false;
  static constexpr int kBatch = 2;
  static constexpr int kRank = 2;
  static constexpr int kRows = 8;
  static constexpr int kStride = 128;
  static constexpr int kColumns = 1;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  const int* first_o;
  const int* count_o;
  const dnnarray::arithmetic_t<Config::Element>* weight_o;
  const int* first_p;
  const int* count_p;
  const dnnarray::arithmetic_t<Config::Element>* weight_p;
  long long rows;
  long long here;
  long long target[3];
  long long source[3];
  long long load_lanes;
  long long store_lanes;
  long long options[3];
  double steps[3];
};
#define DNNARRAY_ENTRY spatial_resize_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kBatch = Config::kBatch, kRank = Config::kRank, kRows = Config::kRows, kColumns = Config::kColumns,
              kVector = Config::kVector;
constexpr int kThreads = Config::kThreads, kStride = Config::kStride;
constexpr int kTogether = kRank == 3 || kBatch > 2 ? 1 : 2;  // rows whose taps a thread fetches at once
constexpr bool kComputed = Config::kComputed;
using V = Vec<T, kVector>;

// The taps of all elements along an axis, from a table or (kComputed) from its definition.
struct Line {
  const int *firsts, *counts;
  const A* weights;
  long long elements;
  Resize resize;
};

// Those of one element.
struct Own {
  int first, last, place;
  A computed[kComputed ? kBatch : 1];

  Own() = default;
  __device__ __forceinline__ Own(const Line& line, int i) {
    if constexpr (kComputed) {
      const Taps found = line.resize.taps(i);
      first = static_cast<int>(found.first), last = static_cast<int>(found.count) - 1;
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        computed[k] = static_cast<A>(line.resize.weight(i, first + (k < last ? k : last)));
    } else {
      first = line.firsts[i], last = line.counts[i] - 1;
      if (last < 0) first = 0;  // no taps at all: what is fetched beside others is there, and not used
      place = i;
    }
  }
  __device__ __forceinline__ int end() const { return last < 0 ? 0 : last; }
  // That of tap k, which is number u of those fetched together.
  __device__ __forceinline__ A weight(const Line& line, int k, int u) const {
    return kComputed ? computed[u] : line.weights[k * line.elements + place];
  }
};

// Calls use(n, fetch(n, tap), weight) for each tap of each of kCount elements; kBatch taps are fetched before the first
// is used, those behind the last as that.
template <int kCount, typename Elements, typename Fetch, typename Use>
__device__ __forceinline__ void each(Elements own, const Line& line, Fetch fetch, Use use) {
  int longest = own(0).last;
#pragma unroll
  for (int n = 1; n < kCount; ++n) longest = own(n).last > longest ? own(n).last : longest;
  for (int k = 0; k <= longest; k += kBatch) {
    decltype(fetch(0, 0)) found[kCount][kBatch];
    A weights[kCount][kBatch];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int tap = k + u < own(n).end() ? k + u : own(n).end();
        found[n][u] = fetch(n, own(n).first + tap);
        weights[n][u] = own(n).weight(line, tap, u);
      }
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (k + u <= own(n).last) use(n, found[n][u], weights[n][u]);
      }
    }
    if (kComputed) break;
  }
}

// Where a row of y comes from: its plane of x, and the taps along both slower axes.
struct Origin {
  long long plane;
  Own deep, down;
};

// kVector neighbours of the rows of x that kTogether rows of y are made of; `x` points at their column.
__device__ __forceinline__ void gather(A (&sum)[kTogether][kVector], const T* x, const Origin* (&from)[kTogether],
                                       const Line& deep, const Line& down, long long height, long long width) {
  const auto take = [&](int n, const V& row, A weight) {
    A part[kVector];
    widen_all<T>(part, row);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[n][v] += part[v] * weight;
  };
  const auto flat = [&](long long slice, A around) {
    each<kTogether>(
        [&](int n) -> const Own& { return from[n]->down; }, down,
        [&](int n, int tap) { return load<T, kVector>(x + from[n]->plane + (slice * height + tap) * width); },
        [&](int n, const V& row, A weight) { take(n, row, kRank == 3 ? weight * around : weight); });
  };
  if constexpr (kRank == 1) {
#pragma unroll
    for (int n = 0; n < kTogether; ++n) take(n, load<T, kVector>(x + from[n]->plane), A(1));
  }
  if constexpr (kRank == 2) flat(0, A(1));
  if constexpr (kRank == 3) {
    const Own& slices = from[0]->deep;
    for (int k = 0; k <= slices.last; ++k) flat(slices.first + k, slices.weight(deep, k, k));
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
__device__ __forceinline__ void put(T* to, const A* line, const Own (&own)[kColumns], const Line& across, long long q,
                                    int left) {
  A total[kRows][kColumns] = {};
  struct Found {
    A row[kRows];
  };
  const auto fetch = [&](int, int tap) {
    Found found;
#pragma unroll
    for (int r = 0; r < kRows; ++r) found.row[r] = line[tap + r * kStride];
    return found;
  };
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    each<1>([&](int) -> const Own& { return own[j]; }, across, fetch,
            [&](int, const Found& found, A weight) {
#pragma unroll
              for (int r = 0; r < kRows; ++r) total[r][j] += found.row[r] * weight;
            });
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < left) store(to, narrow_all<T>(total[r]));
    to += q;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 8 || kRank == 3 || kBatch == 1 || kComputed ? 1 : 0)
    DNNARRAY_ENTRY(const int* __restrict__ first_q, const int* __restrict__ count_q, const A* __restrict__ weight_q,
                   const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char dnn_smem[];
  const int tid = threadIdx.x, size = static_cast<int>(a.source[2]), columns = static_cast<int>(a.target[2]),
            count = static_cast<int>(a.here);
  A* lines = reinterpret_cast<A*>(dnn_smem);
  Origin* origins = reinterpret_cast<Origin*>(lines + count * kStride);
  const long long first = static_cast<long long>(blockIdx.x) * count;
  const Line deep{a.first_o, a.count_o, a.weight_o, a.target[0],
                  resize_of(a.source[0], a.target[0], a.options[0], a.steps[0])};
  const Line down{a.first_p, a.count_p, a.weight_p, a.target[1],
                  resize_of(a.source[1], a.target[1], a.options[1], a.steps[1])};
#pragma unroll 1
  for (int i = tid; i < count; i += kThreads) {
    long long plane = first + i < a.rows ? first + i : a.rows - 1;
    const int row = static_cast<int>(split(plane, a.target[1])),
              slice = kRank == 3 ? static_cast<int>(split(plane, a.target[0])) : 0;
    Origin& from = origins[i];
    from.plane = plane * a.source[0] * a.source[1] * a.source[2];
    if (kRank > 1) from.down = Own(down, row);
    if (kRank > 2) from.deep = Own(deep, slice);
  }
  __syncthreads();

  const int load_step = kThreads >> a.load_lanes;
  for (int c = (tid & ((1 << a.load_lanes) - 1)) * kVector; c < size; c += kVector << a.load_lanes) {
#pragma unroll 1
    for (int r = tid >> a.load_lanes; r < count; r += load_step * kTogether) {
      const Origin* from[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) from[n] = origins + (r + n * load_step < count ? r + n * load_step : r);
      A sum[kTogether][kVector] = {};
      gather(sum, x + c, from, deep, down, a.source[1], a.source[2]);
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        if (r + n * load_step < count) keep(lines + (r + n * load_step) * kStride + c, sum[n]);
      }
    }
  }
  __syncthreads();

  const Line across{first_q, count_q, weight_q, a.target[2],
                    resize_of(a.source[2], a.target[2], a.options[2], a.steps[2])};
  for (int c = (tid & ((1 << a.store_lanes) - 1)) * kColumns; c < columns; c += kColumns << a.store_lanes) {
    Own taps[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) taps[j] = Own(across, c + j);
    for (int r = (tid >> a.store_lanes) * kRows; r < count; r += kRows * (kThreads >> a.store_lanes)) {
      const long long left = a.rows - first - r;
      put(y + (first + r) * a.target[2] + c, lines + r * kStride, taps, across, a.target[2],
          left < kRows ? static_cast<int>(left) : kRows);
    }
  }
}
