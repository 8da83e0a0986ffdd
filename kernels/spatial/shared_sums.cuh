// Sums in shared memory of what many threads contribute, with the same bits in whatever order the contributions come.
#pragma once

#include "spatial/scatter.cuh"

namespace dnnarray {

constexpr unsigned kInfiniteBits = 0x7f800000u;  // of a float; those of NaN are larger

__device__ __forceinline__ float float_power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// 64-bit integers in two words, since shared memory adds up no more than 32 bits at once: the lower words' sum carries
// into the upper ones'. Contributions are multiplied by a power of two, in two steps that both stay in the range of
// float.
struct SharedSums {
  unsigned *low, *high;
  int up[2];  // exponents

  // `largest` are the bits of the largest |contribution|; fewer than 2^bits meet in an element, so that their sum stays
  // below 2^62.
  __device__ __forceinline__ SharedSums(unsigned* memory, int size, unsigned largest, int bits)
      : low(memory), high(memory + size) {
    const int e = 61 - bits - (static_cast<int>(largest >> 23) - 126);
    up[0] = e / 2, up[1] = e - e / 2;
  }
  // A finite value.
  __device__ __forceinline__ void add(int at, float value) const {
    const long long whole = __float2ll_rn(value * float_power_of_two(up[0]) * float_power_of_two(up[1]));
    const unsigned lower = static_cast<unsigned>(whole), before = atomicAdd(low + at, lower);
    atomicAdd(high + at, static_cast<unsigned>(whole >> 32) + (before + lower < lower));
  }
  __device__ __forceinline__ float total(int at) const {
    const long long sum = static_cast<long long>(static_cast<unsigned long long>(high[at]) << 32 | low[at]);
    return __ll2float_rn(sum) * float_power_of_two(-up[0]) * float_power_of_two(-up[1]);
  }
};

// What an element is that contributions which are not finite have gone to.
__device__ __forceinline__ unsigned flag_of(float value) {
  return value != value ? kUndefined : value > 0 ? kPositive : kNegative;
}
__device__ __forceinline__ float flagged(unsigned flags) {
  return flags == kPositive ? infinity(0.0f) : flags == kNegative ? -infinity(0.0f) : quiet_nan(0.0f);
}

}  // namespace dnnarray
