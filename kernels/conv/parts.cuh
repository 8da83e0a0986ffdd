// Float32 numbers as one or two parts of half types, whose products tensor cores form exactly: x 2^-exponent = first +
// second 2^-kLater.
//
// float16: a power of two brings the largest magnitude of an array below 2^15, and to 2^8 at least. Two parts hold 22
// bits of every number down to 2^-22 of the largest and an absolute 2^-44 of it below; one part 11 bits, and 2^-33.
// bfloat16 has float32's exponents and needs no such power.
#pragma once

#include "dnnarray/core/vec.cuh"

namespace dnnarray {

constexpr int kLater = 11;  // binary places that a second part is moved up by, so that it has the range of the first
constexpr float kSecond = 1.0f / (1 << kLater);
constexpr int kSpare = 6;  // binary places above the largest number that may stay empty
constexpr unsigned kStrange = 0x80000000u, kInfinite = 0x7f800000u;

// What is known of an array when it has been read: the largest finite magnitude's bits, and kStrange where there are
// NaN or infinities.
__device__ __forceinline__ unsigned merged(unsigned a, unsigned b) {
  return ((a | b) & kStrange) | max(a & ~kStrange, b & ~kStrange);
}
__device__ __forceinline__ unsigned seen(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < kInfinite ? bits : kStrange;
}
struct Merge {
  __device__ __forceinline__ unsigned operator()(unsigned a, unsigned b) const { return merged(a, b); }
};

// The array's numbers are 2^exponent times those of the parts.
struct Scale {
  int exponent, strange;

  __device__ __forceinline__ static Scale of(unsigned found) {
    const int largest = static_cast<int>((found & ~kStrange) >> 23) - 127;
    return {max(largest - 14, -126), (found & kStrange) != 0};
  }
  // Whether numbers of which `found` is known fit into the parts, and leave no more than kSpare of their binary places
  // empty.
  __device__ __forceinline__ bool holds(unsigned found) const {
    const int exact = of(found).exponent;
    return exact <= exponent && exponent <= exact + kSpare;
  }
  __device__ __forceinline__ float down() const { return __uint_as_float(static_cast<unsigned>(127 - exponent) << 23); }
};

// 2^e of a sum of two exponents as two factors, both of which float32 has.
struct Factors {
  float first, second;

  __device__ __forceinline__ explicit Factors(int e)
      : first(__uint_as_float(static_cast<unsigned>(127 + e / 2) << 23)),
        second(__uint_as_float(static_cast<unsigned>(127 + e - e / 2) << 23)) {}
  __device__ __forceinline__ float operator()(float x) const { return x * first * second; }
};

// Parts of two numbers that are scaled already, side by side.
template <typename T, int kParts>
struct Parts {
  static __device__ __forceinline__ void of(float low, float high, unsigned (&at)[kParts]) {
    at[0] = narrow_pair(low, high, T());
    if constexpr (kParts == 2) {
      float first_low, first_high;
      widen_pair(first_low, first_high, at[0], T());
      at[1] = narrow_pair((low - first_low) * (1 << kLater), (high - first_high) * (1 << kLater), T());
    }
  }
};

}  // namespace dnnarray
