// y[r, :] = act((s[r, :] - mean) * rstd * weight + bias) with s = x (+ residual); rms norm leaves the mean out.
//
// Layout:  rows of contiguous columns. kLanes threads hold a row in registers, thread l the vectors l, l + kLanes, ...;
//          kThreads / kLanes rows a block. weight and bias run along the columns, or (kImages, group norm) there is one
//          value for each image of `space` columns, and every `groups` rows the same ones again; 1 says that a vector
//          holds no more than one border of images, 2 that it may hold any number.
// Needs:   columns a multiple of kVector and at most kLanes * kVectors * kVector; pointers aligned to kVector elements.
// Bound:   memory: x (and residual) read once, y (and the sum) written once. H200, 2026-11-21, 16384 x 4096: layer norm
//          3,975 GB/s float32, 3,823 bfloat16, rms norm after an addition 4,062 and 4,009, of 4,235 copied.
// Maths:   the mean, then the distances from it, whose own mean corrects the first (which rounds where x is far from
//          0). With kFull, where every thread has as many values, one round of sums: the distances from the row's first
//          value, then mean and squares of each thread, merged.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/division.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Bias = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr int kImages = 0;
  static constexpr bool kFull = false;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 8;
  static constexpr int kLanes = 128;
  static constexpr int kThreads = 128;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_row;
  long long rows;
  long long columns;
  double share;
  double eps;
  double p;
  double q;
  long long groups;
  long long space;
  long long space_divisor;
};
#define DNNARRAY_ENTRY norm_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kLanes = Config::kLanes,
              kThreads = Config::kThreads;

constexpr bool kFull = Config::kFull && Config::kCentred;
constexpr bool kEarly =
    Config::kImages == 0 && kVectors * kVector <= 16;  // whether there are registers for weight and bias of a whole row
constexpr bool kAhead = kEarly && !Config::kAdd;       // whether all is read before anything is written

struct Registers {
  A at[kVectors][kVector];
};

__device__ __forceinline__ long long column(int k) {
  return static_cast<long long>(k * kLanes + threadIdx.x % kLanes) * kVector;
}

__device__ __forceinline__ A sum_over_row(A value, A* smem) {
  if constexpr (kLanes <= kWarp) {
    return warp_sum<kLanes>(value);
  } else {
    return block_reduce<kThreads>(value, Sum(), smem);
  }
}

__device__ __forceinline__ void sum_over_row(A& first, A& second, A* smem) {
  if constexpr (kLanes <= kWarp) {
    first = warp_sum<kLanes>(first);
    second = warp_sum<kLanes>(second);
  } else {
    block_reduce<kThreads>(first, Sum(), second, Sum(), smem);
  }
}

// The row that begins at x, `start` elements into the others, in registers, 0 past its end; with a residual the sum is
// written on the way.
__device__ __forceinline__ Registers read(const T* x, const T* residual, T* sum, long long start, long long columns,
                                          bool mine) {
  Registers reg;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const long long j = column(k);
    if (j >= columns) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) reg.at[k][v] = A(0);
      continue;
    }
    widen_all(reg.at[k], load<T, kVector>(x + j));
    if constexpr (Config::kAdd) {
      A more[kVector];
      widen_all(more, load<T, kVector>(residual + start + j));
#pragma unroll
      for (int v = 0; v < kVector; ++v) reg.at[k][v] += more[v];
      if (mine) store(sum + start + j, narrow_all<T, kVector>(reg.at[k]));
    }
  }
  return reg;
}

// The same as `statistics` for kFull, with `origin` some value of the row.
__device__ __forceinline__ void statistics_at_once(Registers& reg, A origin, A share, A eps, A& mean, A& rstd,
                                                   A* smem) {
  A square = A(0);
  mean = A(0);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    A of_vector = A(0);
#pragma unroll
    for (int v = 0; v < kVector; ++v) of_vector += reg.at[k][v] -= origin;
    mean += of_vector;
  }
  mean *= A(1) / A(kVectors * kVector);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    A squares = A(0);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A distance = reg.at[k][v] - mean;
      squares += distance * distance;
    }
    square += squares;
  }
  merge_evenly<kLanes>(mean, square, A(kVectors * kVector), smem);
  rstd = rstd_for<T>(square * share, eps);
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
#pragma unroll
    for (int v = 0; v < kVector; ++v) reg.at[k][v] = (reg.at[k][v] - mean) * rstd;
  mean += origin;
}

// Leaves the distances from the mean over their root mean square in the registers; gives the mean and rstd.
__device__ __forceinline__ void statistics(Registers& reg, long long columns, A share, A eps, A& mean, A& rstd,
                                           A* smem) {
  A distance = A(0), square = A(0);
  mean = A(0);
  if constexpr (Config::kCentred) {
#pragma unroll
    for (int k = 0; k < kVectors;
         ++k) {  // a vector's sum by itself: one addition after the other is what a short row waits for
      A of_vector = reg.at[k][0];
#pragma unroll
      for (int v = 1; v < kVector; ++v) of_vector += reg.at[k][v];
      mean += of_vector;
    }
    mean = sum_over_row(mean, smem) * share;
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    A far = A(0), squares = A(0);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (Config::kCentred && column(k) < columns) reg.at[k][v] -= mean;
      far += reg.at[k][v];
      squares += reg.at[k][v] * reg.at[k][v];
    }
    distance += far, square += squares;
  }
  if constexpr (Config::kCentred) {
    sum_over_row(distance, square, smem);
  } else {
    square = sum_over_row(square, smem);
  }
  const A delta = Config::kCentred ? distance * share : A(0);
  rstd = rstd_for<T>(square * share - delta * delta, eps);
  mean += delta;
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
#pragma unroll
    for (int v = 0; v < kVector; ++v) reg.at[k][v] = (reg.at[k][v] - delta) * rstd;
}

// A vector of weight or bias for the columns from j on.
template <typename P>
__device__ __forceinline__ void parameter(A (&to)[kVector], const P* p, A absent, long long j, long long columns,
                                          unsigned first, const Divisor& space) {
  if (p == nullptr) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) to[v] = absent;
  } else if constexpr (Config::kImages > 0) {
    unsigned channel = space.quotient(static_cast<unsigned>(j)),
             left = (channel + 1) * space.n - static_cast<unsigned>(j);
    if constexpr (Config::kImages == 1) {
      const A own = widen(p[first + channel]), next = widen(p[first + channel + (j + left < columns)]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) to[v] = v < left ? own : next;
    } else {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        to[v] = widen(p[first + channel]);
        if (--left == 0) left = space.n, ++channel;
      }
    }
  } else {
    constexpr int kPiece = kVector * sizeof(P) > 16 ? 16 / sizeof(P) : kVector;
#pragma unroll
    for (int start = 0; start < kVector; start += kPiece) {
      A values[kPiece];
      widen_all(values, load<P, kPiece>(p + j + start));
#pragma unroll
      for (int v = 0; v < kPiece; ++v) to[start + v] = values[v];
    }
  }
}

// A parameter of all columns of this thread, as it lies in memory: under way while the statistics are found.
template <typename P>
struct Early {
  static constexpr int kPiece = kVector * sizeof(P) > 16 ? 16 / sizeof(P) : kVector, kPieces = kVector / kPiece;
  Vec<P, kPiece> piece[kEarly ? kVectors * kPieces : 1];

  __device__ __forceinline__ Early(const P* p, long long columns) {
    if (!kEarly || p == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVectors * kPieces; ++i) {
      const long long j = column(i / kPieces);
      if (j < columns) piece[i] = load<P, kPiece>(p + j + i % kPieces * kPiece);
    }
  }
  __device__ __forceinline__ void read(A (&to)[kVector], int k, bool there, A absent) const {
#pragma unroll
    for (int start = 0; start < kVector; start += kPiece) {
      A values[kPiece];
      widen_all(values, piece[k * kPieces + start / kPiece]);
#pragma unroll
      for (int v = 0; v < kPiece; ++v) to[start + v] = there ? values[v] : absent;
    }
  }
};

// `share` is 1 / columns. `mean_of` and `rstd_of_row` are null where nobody asks for the statistics; `first` of a row
// is its first channel. What every configuration reads comes first: each further 64 bytes of arguments are a miss of
// the constant cache, 0.05 us of a small array.
extern "C" __global__ void __launch_bounds__(kThreads,
                                             sizeof(T) == 8 || Config::kImages > 0 || (kEarly && kVectors > 2))
    DNNARRAY_ENTRY(const T* __restrict__ x, const Config::Weight* __restrict__ weight,
                   const Config::Bias* __restrict__ bias, T* __restrict__ y, const T* __restrict__ residual,
                   T* __restrict__ sum, const __grid_constant__ Arguments a) {
  A *const mean_of = a.mean_of, *const rstd_of_row = a.rstd_of_row;
  const long long rows = a.rows, columns = a.columns, groups = a.groups, space = a.space,
                  space_divisor = a.space_divisor;
  const double share = a.share, eps = a.eps;
  __shared__ A smem[2 * kThreads / kWarp];
  begin_ahead();
  const long long wanted = static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const bool mine = wanted < rows;
  const long long row = mine ? wanted : rows - 1;
  const Divisor image(space, space_divisor);
  const unsigned first = Config::kImages > 0 ? static_cast<unsigned>(row) % static_cast<unsigned>(groups) *
                                                   image.quotient(static_cast<unsigned>(columns))
                                             : 0;
  const T* from = x + row * columns;
  if constexpr (kAhead) take_after_previous_kernel(from, weight, bias);
  Early<Config::Weight> early_weight(weight, columns);
  Early<Config::Bias> early_bias(bias, columns);
  A origin = A(0), mean, rstd;
  if constexpr (kFull) {
    origin = widen(*from);
    if constexpr (Config::kAdd) origin += widen(residual[row * columns]);
  }
  Registers reg = read(from, residual, sum, row * columns, columns, mine);
  if constexpr (kFull) {
    statistics_at_once(reg, origin, A(share), A(eps), mean, rstd, smem);
  } else {
    statistics(reg, columns, A(share), A(eps), mean, rstd, smem);
  }
  if (!mine) return;
  if (threadIdx.x % kLanes == 0) {
    if (mean_of != nullptr) mean_of[row] = mean;
    if (rstd_of_row != nullptr) rstd_of_row[row] = rstd;
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const long long j = column(k);
    if (j >= columns) break;
    A w[kVector], b[kVector];
    if constexpr (kEarly) {
      early_weight.read(w, k, weight != nullptr, A(1));
      early_bias.read(b, k, bias != nullptr, A(0));
    } else {
      parameter(w, weight, A(1), j, columns, first, image);
      parameter(b, bias, A(0), j, columns, first, image);
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) w[v] = Config::Activation::forward(reg.at[k][v] * w[v] + b[v], A(a.p), A(a.q));
    store(y + row * columns + j, narrow_all<T, kVector>(w));
  }
}
