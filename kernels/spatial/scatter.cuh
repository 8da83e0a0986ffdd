// Sums of contributions that many threads make to the same elements.
//
// FloatSums adds floating numbers by atomics: fast, but the order, and so the last bits, differ from run to run.
// FixedSums adds 64-bit integers, whose sum has no order: contributions are scaled by a power of two that the largest
// gradient and the number of contributions to an element allow. What is not finite is kept apart in a byte of flags per
// element.
#pragma once

#include "dnnarray/core/reduce.cuh"

namespace dnnarray {

template <typename A>
struct FloatSums {
  A* sums;

  __device__ __forceinline__ void add(long long at, A value) const { atomicAdd(sums + at, value); }
};

enum Flag { kPositive = 1, kNegative = 2, kUndefined = 4 };

__device__ __forceinline__ bool is_finite(float x) { return x - x == 0.0f; }
__device__ __forceinline__ bool is_finite(double x) { return x - x == 0.0; }

// 2^e for e of [-1022, 1023].
__device__ __forceinline__ double power_of_two(int e) {
  return __longlong_as_double(static_cast<long long>(e + 1023) << 52);
}

// The bits of the largest finite |gradient|, a double, stand in *largest. Contributions are no larger, and no more than
// 2^bits of them meet in an element, so that their sum stays below 2^62.
struct FixedScale {
  double up, down;

  __device__ __forceinline__ FixedScale(const unsigned long long* largest, int bits) {
    int e = 61 - bits - (static_cast<int>(*largest >> 52) - 1022);
    e = e > 1000 ? 1000 : e < -1000 ? -1000 : e;
    up = power_of_two(e);
    down = power_of_two(-e);
  }
};

struct FixedSums {
  unsigned long long* sums;
  unsigned* flags;  // four elements a word
  double up;

  __device__ __forceinline__ void add(long long at, double value) const {
    if (is_finite(value)) {
      atomicAdd(sums + at, static_cast<unsigned long long>(static_cast<long long>(rint(value * up))));
    } else {
      const unsigned flag = value != value ? kUndefined : value > 0 ? kPositive : kNegative;
      atomicOr(flags + at / 4, flag << (at % 4 * 8));
    }
  }
};

}  // namespace dnnarray
