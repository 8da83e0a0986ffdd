// Two half values at once, in a word.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

__device__ __forceinline__ unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
  unsigned y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
__device__ __forceinline__ unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  unsigned y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// 0xffff in each half where two pairs are equal; bfloat16 needs sm_90.
__device__ __forceinline__ unsigned set_eq_f16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ unsigned set_eq_bf16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("set.eq.u32.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// The sign bit of each half in all of its bits.
__device__ __forceinline__ unsigned signs_of_halves(unsigned pair) {
  unsigned signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(pair));
  return signs;
}

// Where the low (high) half of `x` equals that of `y`, the number a (b) moves to to_a (to_b): by one comparison of
// both. A sum that has `begun` gets it added; another one begins with it, or with 0.
#define DNNARRAY_ADD(to, gift, here) "@" here " add.f32 " to ", " to ", " gift ";\n"
#define DNNARRAY_BEGIN(to, gift, here) "selp.f32 " to ", " gift ", 0f00000000, " here ";\n"
#define DNNARRAY_MOVE(type, put_a, put_b)                                                              \
  asm("{\n.reg .pred p, q;\nsetp.eq." type " p|q, %4, %5;\n" put_a("%2", "%0", "p")                    \
          put_b("%3", "%1", "q") "selp.f32 %0, 0f00000000, %0, p;\nselp.f32 %1, 0f00000000, %1, q;\n}" \
      : "+f"(a), "+f"(b), "+f"(to_a), "+f"(to_b)                                                       \
      : "r"(x), "r"(y))
#define DNNARRAY_MOVE_PAIR(half, type)                                                                      \
  __device__ __forceinline__ void move_where_equal(unsigned x, unsigned y, float& a, float& b, float& to_a, \
                                                   float& to_b, bool a_begun, bool b_begun, half) {         \
    if (a_begun && b_begun) {                                                                               \
      DNNARRAY_MOVE(type, DNNARRAY_ADD, DNNARRAY_ADD);                                                      \
    } else if (a_begun) {                                                                                   \
      DNNARRAY_MOVE(type, DNNARRAY_ADD, DNNARRAY_BEGIN);                                                    \
    } else if (b_begun) {                                                                                   \
      DNNARRAY_MOVE(type, DNNARRAY_BEGIN, DNNARRAY_ADD);                                                    \
    } else {                                                                                                \
      DNNARRAY_MOVE(type, DNNARRAY_BEGIN, DNNARRAY_BEGIN);                                                  \
    }                                                                                                       \
  }
DNNARRAY_MOVE_PAIR(float16_t, "f16x2")
DNNARRAY_MOVE_PAIR(bfloat16_t, "bf16x2")
#undef DNNARRAY_MOVE_PAIR
#undef DNNARRAY_MOVE
#undef DNNARRAY_BEGIN
#undef DNNARRAY_ADD

}  // namespace dnnarray
