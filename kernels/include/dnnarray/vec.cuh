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
