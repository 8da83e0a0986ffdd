// Floats as sums of two numbers of 11 bits, which tensor cores multiply exactly (TF32).
#pragma once

#include "dnnarray/vec.cuh"

namespace dnnarray {

__device__ __forceinline__ float round_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
}

// x = high + low to 22 bits. What is not finite, or would not be once rounded, is all in `high`.
struct Parts {
  float high, low;
  bool finite;
};
__device__ __forceinline__ Parts parts_of(float x) {
  const float high = round_tf32(x);
  const bool finite = fabsf(high) <= 3.4028234663852886e38f;
  return {finite ? high : x, finite ? round_tf32(x - high) : 0.0f, finite};
}

}  // namespace dnnarray
