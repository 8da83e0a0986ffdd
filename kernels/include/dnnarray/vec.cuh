// Vectors of up to 16 bytes, moved by one instruction. Streaming hints (ld.cs, st.cs) cost 5% on an H200; see docs/measured.md.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
};

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

template <typename T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// Results rounded to their storage type; half types two at a time, by one instruction.
__device__ __forceinline__ unsigned narrow_pair(float16_t, float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ unsigned narrow_pair(bfloat16_t, float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// The two halves of a word as float.
__device__ __forceinline__ void widen_pair(float16_t, unsigned bits, float& low, float& high) {
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(bits));
}
__device__ __forceinline__ void widen_pair(bfloat16_t, unsigned bits, float& low, float& high) {
  low = __uint_as_float(bits << 16);
  high = __uint_as_float(bits & 0xffff0000u);
}

template <typename T, int N>
__device__ __forceinline__ void widen_all(arithmetic_t<T> (&to)[N], const Vec<T, N>& from) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    const auto* pairs = reinterpret_cast<const unsigned*>(&from);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) widen_pair(T(), pairs[i], to[2 * i], to[2 * i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = widen(from.at[i]);
  }
}

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> narrow_all(const arithmetic_t<T> (&from)[N]) {
  Vec<T, N> to;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned pairs[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs[i] = narrow_pair(T(), from[2 * i], from[2 * i + 1]);
    to = *reinterpret_cast<const Vec<T, N>*>(pairs);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to.at[i] = narrow<T>(from[i]);
  }
  return to;
}

}  // namespace dnnarray
