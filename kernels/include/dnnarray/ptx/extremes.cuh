// Maxima and minima in which a NaN wins, as in numpy.maximum and numpy.minimum. Those of two half values at once need
// sm_80.
#pragma once

namespace dnnarray {

__device__ __forceinline__ float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a > b || a != a ? a : b;
#endif
}
__device__ __forceinline__ float min_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a < b || a != a ? a : b;
#endif
}

// Of `a` and the magnitude of `b`; needs sm_80.
__device__ __forceinline__ float max_nan_abs(float a, float b) {
  float y;
  asm("{.reg .f32 t; abs.f32 t, %2; max.NaN.f32 %0, %1, t;}" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ __forceinline__ unsigned short max_nan_f16(unsigned short a, unsigned short b) {
  unsigned short y;
  asm("max.NaN.f16 %0, %1, %2;" : "=h"(y) : "h"(a), "h"(b));
  return y;
}
__device__ __forceinline__ unsigned short max_nan_bf16(unsigned short a, unsigned short b) {
  unsigned short y;
  asm("max.NaN.bf16 %0, %1, %2;" : "=h"(y) : "h"(a), "h"(b));
  return y;
}
__device__ __forceinline__ unsigned max_nan_f16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ unsigned max_nan_bf16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// The same without NaN, which loses.
__device__ __forceinline__ unsigned max_f16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ unsigned max_bf16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// The smaller of two pairs of unsigned integers; needs sm_90.
__device__ __forceinline__ unsigned min_u16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("min.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

}  // namespace dnnarray
