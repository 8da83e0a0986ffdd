// Arithmetic of integers and bytes.
#pragma once

namespace dnnarray {

// The 64-bit product in one instruction; from a cast and a product the compiler makes a sum with a zero upper half
// besides.
__device__ __forceinline__ unsigned long long mul_wide_u32(unsigned a, unsigned b) {
  unsigned long long y;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(y) : "r"(a), "r"(b));
  return y;
}

// Bytes of two words, picked here and not before.
__device__ __forceinline__ unsigned prmt_b32(unsigned x, unsigned y, unsigned selection) {
  unsigned v;
  asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(selection));
  return v;
}

}  // namespace dnnarray
