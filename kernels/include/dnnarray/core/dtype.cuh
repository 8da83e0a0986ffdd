// Storage types and their arithmetic. No CUDA header is needed: half types are 16 bits, converted by PTX.
#pragma once

#include "dnnarray/ptx/convert.cuh"

namespace dnnarray {

struct float16_t {
  unsigned short bits;
};
struct bfloat16_t {
  unsigned short bits;
};

// Whether two types are one, for the check that an entry's parameters are those of the plan's record (`Arguments`).
template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;

// The type in which values of T are computed with: float, or double for double.
template <typename T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};
template <typename T>
using arithmetic_t = typename Arithmetic<T>::type;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(float16_t x) { return cvt_f32_f16(x.bits); }
__device__ __forceinline__ float widen(bfloat16_t x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// Rounds to nearest, ties to even.
template <typename T>
__device__ __forceinline__ T narrow(arithmetic_t<T> x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double narrow<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ float16_t narrow<float16_t>(float x) {
  return {cvt_f16_f32(x)};
}
template <>
__device__ __forceinline__ bfloat16_t narrow<bfloat16_t>(float x) {
  return {cvt_bf16_f32(x)};
}

}  // namespace dnnarray
