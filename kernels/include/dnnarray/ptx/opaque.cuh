// Values that the compiler is to know nothing about from a place on: an empty instruction text claims to change them.
// They are computed by then, and what follows from them is neither computed ahead of that place nor put together with
// what followed from them before it.
#pragma once

namespace dnnarray {

__device__ __forceinline__ void opaque(unsigned short& v) { asm volatile("" : "+h"(v)); }
__device__ __forceinline__ void opaque(int& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void opaque(unsigned& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void opaque(float& v) { asm volatile("" : "+f"(v)); }
template <typename P>
__device__ __forceinline__ void opaque(P*& v) {
  asm volatile("" : "+l"(v));
}

// The same without a place of its own: the compiler may move it with the value, or leave it out with the value.
__device__ __forceinline__ void opaque_movable(unsigned short& v) { asm("" : "+h"(v)); }

// Accesses of memory stay on their side of this place.
__device__ __forceinline__ void compiler_fence() { asm volatile("" ::: "memory"); }

// A copy in a register of its own, made in this place.
__device__ __forceinline__ float mov_b32(float v) {
  float copy;
  asm volatile("mov.b32 %0, %1;" : "=f"(copy) : "f"(v));
  return copy;
}

}  // namespace dnnarray
