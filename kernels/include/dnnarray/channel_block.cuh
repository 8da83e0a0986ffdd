// Small arrays for the norms over channels: a statistic in the registers of a block, or of one of kRows equal parts of it.
#pragma once

#include "dnnarray/channel_norm.cuh"
#include "dnnarray/division.cuh"

namespace dnnarray {

// Two sums over the threads of each of kRows equal parts of a block, whole warps each, in a fixed order. `smem` holds two values for each
// warp, for this call alone: nobody waits for those who still read.
template <int kThreads, int kRows, typename A>
__device__ __forceinline__ void sum_parts(A& first, A& second, A* smem) {
  constexpr int kWarps = kThreads / kWarp, kOwn = kWarps / kRows;
  warp_sum_both(first, second);
  if constexpr (kOwn > 1) {
    const int warp = threadIdx.x / kWarp, begin = warp / kOwn * kOwn;
    if (threadIdx.x % kWarp == 0) smem[warp] = first, smem[kWarps + warp] = second;
    __syncthreads();
    first = smem[begin], second = smem[kWarps + begin];
#pragma unroll
    for (int w = 1; w < kOwn; ++w) first += smem[begin + w], second += smem[kWarps + begin + w];
  }
}

// The vectors of a thread: lane, lane + kLanes, ... of a statistic's, which come in images of `each` vectors, `pitch` elements apart.
template <typename T, int kVector, int kVectors, int kLanes>
struct Owned {
  using A = arithmetic_t<T>;
  int at[kVectors], image[kVectors];
  bool there[kVectors];

  __device__ __forceinline__ Owned(int lane, int base, int vectors, const Divisor& each, int pitch, bool row) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * kLanes + lane;
      there[k] = row && i < vectors;
      image[k] = static_cast<int>(each.quotient(static_cast<unsigned>(i)));
      at[k] = base + image[k] * pitch + (i - image[k] * static_cast<int>(each.n)) * kVector;
    }
  }
  // The vectors as they come, 0 where there are none, and their values.
  struct Fetched {
    Wordwise<T, kVector> piece[kVectors] = {};
  };
  __device__ __forceinline__ Fetched fetch(const T* from) const {
    Fetched to;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (from != nullptr && there[k]) to.piece[k] = load_wordwise<T, kVector>(from + at[k]);
    return to;
  }
  __device__ __forceinline__ static void widen_pieces(A (&to)[kVectors][kVector], const Fetched& from) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) widen_all(to[k], from.piece[k]);
  }
  __device__ __forceinline__ void write(T* to, const A (&values)[kVectors][kVector]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (there[k]) store(to + at[k], narrow_all<T, kVector>(values[k]));
  }
  // f(k, v) for each value.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!there[k]) continue;
#pragma unroll
      for (int v = 0; v < kVector; ++v) f(k, v);
    }
  }
};

// A statistic as the threads use it, without double; `rest` is what rounding took from the mean.
template <typename T>
struct Brief {
  using A = arithmetic_t<T>;
  A mean, rest, rstd;
  Shares sums;  // of the distances from where the mean was first thought to be, and of their squares
  A origin;

  __device__ __forceinline__ Affine<A> affine(A weight, A bias) const {
    const A scale = rstd * weight;
    return {mean, scale, bias - rest * scale, rstd};
  }
};

// How many of a statistic's `vectors` vectors the threads of a warp have, which begin at `lane` of kLanes.
template <int kVectors, int kLanes>
__device__ __forceinline__ int vectors_of_warp(int vectors, int lane) {
  int count = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) count += max(min(vectors - k * kLanes - lane, kWarp), 0);
  return count;
}

// Of the values of a thread and its fellows: the mean of those of a warp, then the distances from it; warps then meet once, around the mean of the first
// of them, from which the mean of all is no farther than a few times the spread. `smem` holds four values for each warp, for this call alone.
template <int kThreads, int kRows, typename T, int kVector, int kVectors, int kLanes, typename A>
__device__ __forceinline__ Brief<T> find_brief(const Owned<T, kVector, kVectors, kLanes>& own, const A (&x)[kVectors][kVector], int vectors, A share,
                                               A eps, A (*smem)[4]) {
  constexpr int kOwn = kLanes / kWarp;
  const int warp = threadIdx.x / kWarp, begin = warp / kOwn * kOwn;
  const A count = A(kVector * vectors_of_warp<kVectors, kLanes>(vectors, (warp - begin) * kWarp)), inverse = quick_reciprocal(max(count, A(1)));
  A origin = A(0), distance = A(0), square = A(0);
  own.each([&](int k, int v) { origin += x[k][v]; });
  origin = warp_sum(origin) * inverse;
  own.each([&](int k, int v) {
    const A d = x[k][v] - origin;
    distance += d;
    square += d * d;
  });
  distance = warp_sum(distance), square = warp_sum(square);
  if constexpr (kOwn > 1) {
    if (threadIdx.x % kWarp == 0) smem[warp][0] = origin, smem[warp][1] = distance, smem[warp][2] = square, smem[warp][3] = count;
    __syncthreads();
    origin = smem[begin][0], distance = smem[begin][1], square = smem[begin][2];
#pragma unroll
    for (int w = 1; w < kOwn; ++w) {
      const A *of = smem[begin + w], far = of[0] - origin, shift = of[3] * far;
      distance += of[1] + shift;
      square += of[2] + far * (A(2) * of[1] + shift);
    }
  }
  const A delta = distance * share, mean = origin + delta;
  return {mean, delta - (mean - origin), rstd_for<T>(square * share - delta * delta, eps), {double(distance), double(square)}, origin};
}

}  // namespace dnnarray
