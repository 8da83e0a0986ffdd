// What the norms share: parameters of either dtype, and moments that can be merged.
#pragma once

#include "dnnarray/core/math.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/ptx/approximate.cuh"

namespace dnnarray {

__device__ __forceinline__ float root_of(float x) { return sqrtf(x); }
__device__ __forceinline__ double root_of(double x) { return sqrt(x); }

// 1 / sqrt(variance + eps). A variance below 0 is rounding; a NaN stays.
template <typename A>
__device__ __forceinline__ A rstd_of(A variance, A eps) {
  return A(1) / root_of((variance < A(0) ? A(0) : variance) + eps);
}

// The same without root or division, which every thread of a row would wait for: to within 2e-7 of the result where
// that is rounded to a half type T; for float one step of Newton's method brings it to the rounding of the exact
// formula, except from 0 and infinity, which are right as they are.
template <typename T>
__device__ __forceinline__ arithmetic_t<T> rstd_for(arithmetic_t<T> variance, arithmetic_t<T> eps) {
  if constexpr (sizeof(T) == 8) {
    return rstd_of(variance, eps);
  } else {
    const float x = (variance < 0.0f ? 0.0f : variance) + eps;
    const float y = rsqrt_approx(x);
    if constexpr (sizeof(T) == 2) return y;
    const float near = y + 0.5f * y * (1.0f - x * y * y);
    return near == near ? near : y;
  }
}

// The mean and the sum of squared distances from it, of kLanes times `count` numbers, from those of `count` numbers of
// each of kLanes neighbouring lanes: two sets of equally many meet exactly, in one round in place of one for the mean
// and one for the distances. All lanes get the same bits.
template <int kLanes, typename A>
__device__ __forceinline__ void merge_lanes(A& mean, A& square, A count) {
#pragma unroll
  for (int lane = 1; lane < kLanes; lane *= 2, count += count) {
    const A other = __shfl_xor_sync(kAllLanes, mean, lane), more = __shfl_xor_sync(kAllLanes, square, lane),
            distance = other - mean;
    mean = A(0.5) * (mean + other);
    square += more + distance * distance * (A(0.5) * count);
  }
}

// The same over kLanes neighbouring lanes of a warp, or over a whole block of kLanes threads; `smem` holds two values
// for each warp, for this call alone.
template <int kLanes, typename A>
__device__ __forceinline__ void merge_evenly(A& mean, A& square, A count, A* smem) {
  if constexpr (kLanes <= kWarp) {
    merge_lanes<kLanes>(mean, square, count);
  } else {
    constexpr int kWarps = kLanes / kWarp;
    merge_lanes<kWarp>(mean, square, count);
    if (threadIdx.x % kWarp == 0) smem[threadIdx.x / kWarp] = mean, smem[kWarps + threadIdx.x / kWarp] = square;
    __syncthreads();
    mean = smem[threadIdx.x % kWarps], square = smem[kWarps + threadIdx.x % kWarps];
    merge_lanes<kWarps>(mean, square, count * kWarp);
  }
}

// A small array of the dtype of the data or of its arithmetic, told apart at run time; may be absent.
template <typename T>
struct Parameter {
  const void* data;
  bool wide;
  __device__ __forceinline__ arithmetic_t<T> at(long long i, arithmetic_t<T> absent) const {
    if (data == nullptr) return absent;
    return wide ? static_cast<const arithmetic_t<T>*>(data)[i] : widen(static_cast<const T*>(data)[i]);
  }

  // The same in two steps: under way, and, where it is needed, its value.
  struct Fetched {
    arithmetic_t<T> wide;
    Wordwise<T, 1> narrow;
  };
  __device__ __forceinline__ Fetched fetch(long long i) const {
    Fetched to = {};
    if (data != nullptr && wide) to.wide = static_cast<const arithmetic_t<T>*>(data)[i];
    if (sizeof(T) == 2 && data != nullptr && !wide) to.narrow = load_wordwise<T, 1>(static_cast<const T*>(data) + i);
    return to;
  }
  __device__ __forceinline__ arithmetic_t<T> value(const Fetched& from, arithmetic_t<T> absent) const {
    if (sizeof(T) > 2 || wide) return data == nullptr ? absent : from.wide;
    arithmetic_t<T> narrow[1];
    widen_all(narrow, from.narrow);
    return data == nullptr ? absent : narrow[0];
  }
};

template <typename T>
__device__ __forceinline__ void put(void* data, bool wide, long long i, arithmetic_t<T> value) {
  if (wide) {
    static_cast<arithmetic_t<T>*>(data)[i] = value;
  } else {
    static_cast<T*>(data)[i] = narrow<T>(value);
  }
}

// How many numbers, their mean, and the sum of their squared distances from it. In double, so that the mean of numbers
// far from 0 keeps the digits that their distances from it need.
struct Moments {
  double count, mean, square;
};

__device__ __forceinline__ Moments merge(const Moments& a, const Moments& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const double count = a.count + b.count;
  const double share = b.count / count, distance = b.mean - a.mean;
  return {count, a.mean + distance * share, a.square + b.square + distance * distance * (a.count * share)};
}

// Sums of one thread around its own first number: what is far from 0 but close together loses nothing.
template <typename A>
struct Shifted {
  A shift, sum = A(0), square = A(0);

  __device__ __forceinline__ explicit Shifted(A first = A(0)) : shift(first) {}
  __device__ __forceinline__ void add(A x) {
    const A d = x - shift;
    sum += d;
    square += d * d;
  }
  __device__ __forceinline__ Moments moments(long long count) const {
    if (count <= 0) return {0, 0, 0};
    const double mean = double(sum) / double(count), rest = double(square) - double(sum) * mean;
    return {double(count), double(shift) + mean, rest < 0 ? 0 : rest};
  }
};

// One value of each thread with the same threadIdx.x % kSide becomes the merge of all of them, in a fixed order.
// kThreads / kSide is a power of two; `smem` holds a value for each thread.
template <int kSide, int kThreads, typename V, typename Merge>
__device__ __forceinline__ V over_steps(V mine, Merge merged, V* smem) {
  smem[threadIdx.x] = mine;
  __syncthreads();
#pragma unroll
  for (int half = kThreads / kSide / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * kSide) smem[threadIdx.x] = merged(smem[threadIdx.x], smem[threadIdx.x + half * kSide]);
    __syncthreads();
  }
  const V all = smem[threadIdx.x % kSide];
  __syncthreads();
  return all;
}

}  // namespace dnnarray
