// Sums, maxima and other associative reductions over the lanes of a warp, part of a warp, or a block. Every participant
// gets the result, and the order of the operations is fixed, so that the same values give the same bits.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/extremes.cuh"

namespace dnnarray {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float infinity(float) { return __int_as_float(0x7f800000); }
__device__ __forceinline__ double infinity(double) { return __longlong_as_double(0x7ff0000000000000ll); }
__device__ __forceinline__ float quiet_nan(float) { return __int_as_float(0x7fc00000); }
__device__ __forceinline__ double quiet_nan(double) { return __longlong_as_double(0x7ff8000000000000ll); }

// The operations: what they do and the value that changes nothing.
struct Sum {
  template <typename A>
  static __device__ __forceinline__ A identity() {
    return A(0);
  }
  template <typename A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a + b;
  }
};

// A NaN wins, as in numpy.maximum.
struct Max {
  template <typename A>
  static __device__ __forceinline__ A identity() {
    return -infinity(A(0));
  }
  template <typename A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a > b || a != a ? a : b;
  }
  __device__ __forceinline__ float operator()(float a, float b) const { return max_nan(a, b); }
};

// Over each group of kLanes neighbouring lanes (a power of two up to 32). All 32 lanes of the warp must come.
template <int kLanes = kWarp, typename A, typename Op>
__device__ __forceinline__ A warp_reduce(A value, Op op) {
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

template <int kLanes = kWarp, typename A>
__device__ __forceinline__ A warp_sum(A value) {
  return warp_reduce<kLanes>(value, Sum());
}

template <int kLanes = kWarp, typename A>
__device__ __forceinline__ A warp_max(A value) {
  return warp_reduce<kLanes>(value, Max());
}

// Two sums for little more than the price of one: after the first exchange each half of the lanes adds up one of them.
template <int kLanes = kWarp, typename A>
__device__ __forceinline__ void warp_sum_both(A& first, A& second) {
  constexpr int kHalf = kLanes / 2;
  const bool upper = threadIdx.x % kLanes >= kHalf;
  A mine = upper ? second : first;
  mine += __shfl_xor_sync(kAllLanes, upper ? first : second, kHalf);
  mine = warp_sum<kHalf>(mine);
  const A other = __shfl_xor_sync(kAllLanes, mine, kHalf);
  first = upper ? other : mine, second = upper ? mine : other;
}

// Over a block of kThreads (a multiple of 32, up to 1024). `shared` holds one value per warp; it may be used again at
// once.
template <int kThreads, typename A, typename Op>
__device__ __forceinline__ A block_reduce(A value, Op op, A* shared) {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024, "whole warps, and at most as many as a warp has lanes");
  constexpr int kWarps = kThreads / kWarp;
  value = warp_reduce(value, op);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) value = op(value, shared[warp]);
    __syncthreads();
  }
  return value;
}

// Two values at once, for the price of one pair of barriers. `shared` holds two values per warp.
template <int kThreads, typename A, typename Op1, typename Op2>
__device__ __forceinline__ void block_reduce(A& first, Op1 op1, A& second, Op2 op2, A* shared) {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024, "whole warps, and at most as many as a warp has lanes");
  constexpr int kWarps = kThreads / kWarp;
  first = warp_reduce(first, op1);
  second = warp_reduce(second, op2);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % kWarp == 0) {
      shared[threadIdx.x / kWarp] = first;
      shared[kWarps + threadIdx.x / kWarp] = second;
    }
    __syncthreads();
    first = shared[0];
    second = shared[kWarps];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) {
      first = op1(first, shared[warp]);
      second = op2(second, shared[kWarps + warp]);
    }
    __syncthreads();
  }
}

}  // namespace dnnarray
