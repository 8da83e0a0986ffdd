// Matrix products of a warp on the tensor cores (sm_80 and newer), c (16 x 8) += a (16 x k) b (k x 8) in float32: k is
// 16 for half types, 8 for float as TF32.
//
// Fragments of half types, for lane l with g = l / 4 and t = l % 4: A (four registers of two) holds rows g, g + 8 and
// columns 2t, 2t + 1 (+ 8 in the upper two registers); B (two registers) rows 2t, 2t + 1 (+ 8) of column g; C (four
// floats) rows g, g + 8, columns 2t, 2t + 1.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/convert.cuh"
#include "dnnarray/ptx/halves.cuh"
#include "dnnarray/ptx/mma.cuh"

namespace dnnarray {

// `add` is the product, c += a b or d = a b + c, and `add_half` is one with k = 8. `pack` rounds two numbers, `low`
// into the lower half; `round` brings operands to the digits that the product takes.
template <typename T>
struct Mma;
template <>
struct Mma<bfloat16_t> {
  static __device__ __forceinline__ void add(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_bf16(c, a, b0, b1);
  }
  static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                             const float (&c)[4]) {
    mma_m16n8k16_bf16(d, a, b0, b1, c);
  }
  static __device__ __forceinline__ void add(float* c, const unsigned (&a)[4], const unsigned (&b)[2]) {
    add(c, a, b[0], b[1]);
  }
  static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                             const float (&c)[4]) {
    add(d, a, b[0], b[1], c);
  }
  static __device__ __forceinline__ void add_half(float (&d)[4], unsigned a0, unsigned a1, unsigned b,
                                                  const float (&c)[4]) {
    mma_m16n8k8_bf16(d, a0, a1, b, c);
  }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return cvt_bf16x2_f32(low, high); }
  static __device__ __forceinline__ void round(unsigned (&)[4]) {}
};
template <>
struct Mma<float16_t> {
  static __device__ __forceinline__ void add(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_f16(c, a, b0, b1);
  }
  static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                             const float (&c)[4]) {
    mma_m16n8k16_f16(d, a, b0, b1, c);
  }
  static __device__ __forceinline__ void add(float* c, const unsigned (&a)[4], const unsigned (&b)[2]) {
    add(c, a, b[0], b[1]);
  }
  static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                             const float (&c)[4]) {
    add(d, a, b[0], b[1], c);
  }
  static __device__ __forceinline__ void add_half(float (&d)[4], unsigned a0, unsigned a1, unsigned b,
                                                  const float (&c)[4]) {
    mma_m16n8k8_f16(d, a0, a1, b, c);
  }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return cvt_f16x2_f32(low, high); }
  static __device__ __forceinline__ void round(unsigned (&)[4]) {}
};
template <>
struct Mma<float> {
  static __device__ __forceinline__ void add(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k8_tf32(c, a, b0, b1);
  }
  static __device__ __forceinline__ void round(unsigned (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = cvt_tf32_f32(__uint_as_float(v[i]));
  }
};

// Both halves times zero, added to `so_far`: not zero, but for the signs, once one of them is infinite or no number.
__device__ __forceinline__ unsigned not_finite(unsigned pair, unsigned so_far, bfloat16_t) {
  return fma_bf16x2(pair, 0u, so_far);
}
__device__ __forceinline__ unsigned not_finite(unsigned pair, unsigned so_far, float16_t) {
  return fma_f16x2(pair, 0u, so_far);
}

}  // namespace dnnarray
