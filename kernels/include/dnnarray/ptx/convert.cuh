// Conversions between float32 and half types, which are carried as their bits. Below sm_80 there are fewer such
// instructions.
#pragma once

namespace dnnarray {

__device__ __forceinline__ float cvt_f32_f16(unsigned short bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// Of the lower and of the upper half of a word. Each half is taken out into a word of its own: where halves of a word
// are read that wgmma takes as an operand, the assembler cuts the registers in two, cannot put them together again in
// time, and serialises the instructions.
__device__ __forceinline__ float cvt_f32_f16_low(unsigned pair) {
  float y;
  asm("{.reg .b16 h; .reg .b32 t; prmt.b32 t, %1, 0, 0x4410; cvt.u16.u32 h, t; cvt.f32.f16 %0, h;}"
      : "=f"(y)
      : "r"(pair));
  return y;
}
__device__ __forceinline__ float cvt_f32_f16_high(unsigned pair) {
  float y;
  asm("{.reg .b16 h; .reg .b32 t; prmt.b32 t, %1, 0, 0x4432; cvt.u16.u32 h, t; cvt.f32.f16 %0, h;}"
      : "=f"(y)
      : "r"(pair));
  return y;
}

// To the 11 significant bits of TF32, which needs sm_80.
__device__ __forceinline__ unsigned cvt_tf32_f32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}

// Rounded to nearest, ties to even.
__device__ __forceinline__ unsigned short cvt_f16_f32(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ unsigned short cvt_bf16_f32(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

// Two at once, `low` in the lower half of the word.
__device__ __forceinline__ unsigned cvt_f16x2_f32(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return cvt_f16_f32(low) | static_cast<unsigned>(cvt_f16_f32(high)) << 16;
#endif
}
__device__ __forceinline__ unsigned cvt_bf16x2_f32(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return cvt_bf16_f32(low) | static_cast<unsigned>(cvt_bf16_f32(high)) << 16;
#endif
}

// The same of max(x, 0), NaN staying NaN.
__device__ __forceinline__ unsigned cvt_relu_f16x2_f32(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return cvt_f16x2_f32(low < 0 ? 0 : low, high < 0 ? 0 : high);
#endif
}
__device__ __forceinline__ unsigned cvt_relu_bf16x2_f32(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return cvt_bf16x2_f32(low < 0 ? 0 : low, high < 0 ? 0 : high);
#endif
}

}  // namespace dnnarray
