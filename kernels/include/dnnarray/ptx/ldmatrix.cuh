// Matrices of 8 rows of 16 bytes between shared memory and the fragments of a warp (ldmatrix, sm_75; stmatrix, sm_90).
#pragma once

namespace dnnarray {

// Four matrices of 8 rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8, and gets 4 bytes of row
// l / 4 of each.
__device__ __forceinline__ void ldmatrix_x4(unsigned address, unsigned (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned address, unsigned (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two matrices of 8 x 8; lane l gives the address of row l % 8 of matrix l / 8 % 2.
__device__ __forceinline__ void ldmatrix_x2(unsigned address, unsigned (&r)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}

// The same fragments back to shared memory; transposed, lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned smem, const unsigned (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(unsigned smem, const unsigned (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace dnnarray
