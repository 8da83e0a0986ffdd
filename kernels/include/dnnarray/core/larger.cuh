// Numbers of any kind, and the larger of two of them, of two vectors, or of two pairs of halves.
#pragma once

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/ptx/extremes.cuh"
#include "dnnarray/ptx/halves.cuh"

namespace dnnarray {

// Floating types are computed with as everywhere, integers as they are.
template <typename T>
struct Number {
  using type = T;
  static constexpr bool kInteger = true;
  static constexpr bool kSigned = T(-1) < T(0);
  static __device__ __forceinline__ T lowest() { return kSigned ? T(1ull << (8 * sizeof(T) - 1)) : T(0); }
  static __device__ __forceinline__ T widened(T x) { return x; }
  static __device__ __forceinline__ T narrowed(T x) { return x; }
};

template <typename T>
struct FloatingNumber {
  using type = arithmetic_t<T>;
  static constexpr bool kInteger = false;
  static __device__ __forceinline__ type lowest() { return -infinity(type(0)); }
  static __device__ __forceinline__ type widened(T x) { return widen(x); }
  static __device__ __forceinline__ T narrowed(type x) { return narrow<T>(x); }
};
template <>
struct Number<double> : FloatingNumber<double> {};
template <>
struct Number<float> : FloatingNumber<float> {};
template <>
struct Number<float16_t> : FloatingNumber<float16_t> {};
template <>
struct Number<bfloat16_t> : FloatingNumber<bfloat16_t> {};

// Whether b takes the place of the maximum a that came before it: a NaN always does, and nothing but a NaN replaces a
// NaN.
template <typename A>
__device__ __forceinline__ bool wins(A b, A a) {
  return b > a || b != b;
}

// The larger of two, a NaN if one is; the sign of a zero and the bits of a NaN are either's. Two halves at once where
// they fill a word.
template <typename T>
__device__ __forceinline__ T larger(T a, T b) {
  return wins(Number<T>::widened(b), Number<T>::widened(a)) ? b : a;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ float larger(float a, float b) {
  return max_nan(a, b);
}
template <>
__device__ __forceinline__ float16_t larger(float16_t a, float16_t b) {
  return {max_nan_f16(a.bits, b.bits)};
}
template <>
__device__ __forceinline__ bfloat16_t larger(bfloat16_t a, bfloat16_t b) {
  return {max_nan_bf16(a.bits, b.bits)};
}
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b, float16_t) { return max_nan_f16x2(a, b); }
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b, bfloat16_t) { return max_nan_bf16x2(a, b); }
#else
template <typename T>
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b, T) {
  const T low = larger(T{static_cast<unsigned short>(a)}, T{static_cast<unsigned short>(b)});
  return low.bits | larger(T{static_cast<unsigned short>(a >> 16)}, T{static_cast<unsigned short>(b >> 16)}).bits << 16;
}
#endif

template <typename T>
__device__ __forceinline__ unsigned pair_of(T a, T b) {
  return a.bits | static_cast<unsigned>(b.bits) << 16;
}

// Halves number `low` and `high` of several words.
template <int N>
__device__ __forceinline__ unsigned halves_of(const unsigned (&words)[N], int low, int high) {
  if (low % 2 == 0 && high == low + 1) return words[low / 2];
  return __byte_perm(words[low / 2], words[high / 2], (low % 2 ? 0x32 : 0x10) | (high % 2 ? 0x76 : 0x54) << 8);
}

// 0xffff in each half where two pairs are equal.
__device__ __forceinline__ unsigned equal_pair(unsigned a, unsigned b, float16_t) { return set_eq_f16x2(a, b); }
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned equal_pair(unsigned a, unsigned b, bfloat16_t) { return set_eq_bf16x2(a, b); }
#endif

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> larger(const Vec<T, N>& a, const Vec<T, N>& b) {
  Vec<T, N> y;
  if constexpr (N % 2 == 0 && !Number<T>::kInteger && sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const unsigned both = larger_pair(pair_of(a.at[j], a.at[j + 1]), pair_of(b.at[j], b.at[j + 1]), T{});
      y.at[j].bits = static_cast<unsigned short>(both);
      y.at[j + 1].bits = static_cast<unsigned short>(both >> 16);
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) y.at[j] = larger(a.at[j], b.at[j]);
  }
  return y;
}

}  // namespace dnnarray
