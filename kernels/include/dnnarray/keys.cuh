// Halves as integers that are ordered as they are, with a tag of 16 bits below: of several keys the largest is the maximum and says which one it is.
#pragma once

#include "dnnarray/vec.cuh"

namespace dnnarray {

// Both zeros of a pair as +0, since they are equal.
__device__ __forceinline__ unsigned one_zero(unsigned pair, float16_t) {
  unsigned y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(pair), "r"(0u));
  return y;
}
__device__ __forceinline__ unsigned one_zero(unsigned pair, bfloat16_t) {
  unsigned y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(0x3f803f80u), "r"(0u));
  return y;
}

__device__ __forceinline__ float16_t lowest_half(float16_t) { return {0xfc00}; }
__device__ __forceinline__ bfloat16_t lowest_half(bfloat16_t) { return {0xff80}; }

// The key of one half of a pair (no -0).
__device__ __forceinline__ int key_of(unsigned pair, bool upper, unsigned tag) {
  const unsigned bits = __byte_perm(pair, tag, upper ? 0x3254 : 0x1054);
  return static_cast<int>(bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) & 0x7fff0000u));
}

// How far a key is from those of infinities and NaN: it is one of them if this is less than kFar<T>.
template <typename T>
constexpr unsigned kFar = 0;
template <>
constexpr unsigned kFar<float16_t> = 2u << 26;
template <>
constexpr unsigned kFar<bfloat16_t> = 2u << 23;
template <typename T>
__device__ __forceinline__ unsigned distance_to_infinity(int key) {
  return static_cast<unsigned>(key) + (0x80000000u + kFar<T> / 2);
}

}  // namespace dnnarray
