// One warp's matrix product on the tensor cores (mma.sync, sm_80): D (16 x 8, float) += A (16 x 16) B (16 x 8) of half
// types.
//
// Lane l holds, with g = l / 4 and j = l % 4: a[0], a[1] = A[g and g + 8][2j, 2j + 1], a[2], a[3] the same 8 columns
// further; b[0], b[1] = B[2j, 2j + 1 and 8 rows further][g]; d[0], d[1] = D[g][2j, 2j + 1], d[2], d[3] = D[g + 8][2j,
// 2j + 1].
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

__device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 bfloat16_t) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 float16_t) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D = C + A B: in another place than C, which costs no moves where sums go from register to register.
__device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 const float (&c)[4], bfloat16_t) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void multiply_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                                 const float (&c)[4], float16_t) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Both halves times zero, added to `so_far`: not zero, but for the signs, once one of them is infinite or no number.
__device__ __forceinline__ unsigned not_finite(unsigned pair, unsigned so_far, bfloat16_t) {
  unsigned y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(0u), "r"(so_far));
  return y;
}
__device__ __forceinline__ unsigned not_finite(unsigned pair, unsigned so_far, float16_t) {
  unsigned y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(pair), "r"(0u), "r"(so_far));
  return y;
}

}  // namespace dnnarray
