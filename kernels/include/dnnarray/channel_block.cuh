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
  // The values, 0 where there are none; every load is under way before the first is used.
  __device__ __forceinline__ void read(A (&to)[kVectors][kVector], const T* from) const {
    Vec<T, kVector> pieces[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      pieces[k] = {};
      if (there[k]) pieces[k] = load<T, kVector>(from + at[k]);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) widen_all(to[k], pieces[k]);
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

// Of the values of a thread and its fellows: first the mean, then the distances from it, whose own sum is what rounding took from it.
template <typename T, int kThreads, int kRows, typename O, typename A, int kVectors, int kVector>
__device__ __forceinline__ Brief<T> find_brief(const O& own, const A (&x)[kVectors][kVector], A share, A eps, A (*smem)[2 * kThreads / kWarp]) {
  A sum = A(0), unused = A(0), distance = A(0), square = A(0);
  own.each([&](int k, int v) { sum += x[k][v]; });
  sum_parts<kThreads, kRows>(sum, unused, smem[0]);
  const A origin = sum * share;
  own.each([&](int k, int v) {
    const A d = x[k][v] - origin;
    distance += d;
    square += d * d;
  });
  sum_parts<kThreads, kRows>(distance, square, smem[1]);
  const A delta = distance * share, mean = origin + delta;
  return {mean, delta - (mean - origin), rstd_for<T>(square * share - delta * delta, eps), {double(distance), double(square)}, origin};
}

}  // namespace dnnarray
