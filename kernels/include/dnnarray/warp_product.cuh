// Matrix products of a warp on the tensor cores (mma, ldmatrix; sm_80 and newer): sums (16 x 8) += a (16 x k) b (k x 8), the operands' rows
// of k in 32 bytes. Lane l holds, of row l / 4 (+ 8 for elements 2 and 3), the columns l % 4 * 2 + i % 2 as element i.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

// Four matrices of 8 rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8, and gets 4 bytes of row l / 4 of each.
__device__ __forceinline__ void load_matrices(unsigned (&v)[4], unsigned smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(smem)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&v)[4], unsigned smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(smem)
               : "memory");
}

#define DNNARRAY_MMA(kind)                                                                                        \
  asm volatile("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <typename T>
struct Mma;
template <>
struct Mma<bfloat16_t> {
  static __device__ __forceinline__ void run(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    DNNARRAY_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  }
  static __device__ __forceinline__ void round(unsigned (&)[4]) {}
};
template <>
struct Mma<float16_t> {
  static __device__ __forceinline__ void run(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    DNNARRAY_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  }
  static __device__ __forceinline__ void round(unsigned (&)[4]) {}
};
// TF32: the operands are rounded to 11 bits first.
template <>
struct Mma<float> {
  static __device__ __forceinline__ void run(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    DNNARRAY_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  }
  static __device__ __forceinline__ void round(unsigned (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(v[i]) : "f"(__uint_as_float(v[i])));
  }
};
#undef DNNARRAY_MMA

}  // namespace dnnarray
