// Matrix instructions of the warp and what feeds them, from sm_80 on: ldmatrix, mma.sync of 16 x 8 x 16 half-type products summed in float,
// asynchronous copies of 16 bytes into shared memory, and the order of 16-byte chunks in shared memory that avoids bank conflicts.
//
// Fragments, for lane l with g = l / 4 and t = l % 4: A (16 x 16, four registers of two) holds rows g, g + 8 and columns 2t, 2t + 1 (+ 8 in
// the upper two registers); B (16 x 8, two registers) rows 2t, 2t + 1 (+ 8) of column g; C (four floats) rows g, g + 8, columns 2t, 2t + 1.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/memory.cuh"

namespace dnnarray {

// 16 bytes into shared memory; zeros where `valid` is false (`p` is not read then).
__device__ __forceinline__ void copy_async(unsigned target, const void* p, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(p), "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four matrices of 8 x 8; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned address, unsigned (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(unsigned address, unsigned (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <typename T>
struct Mma;
template <>
struct Mma<bfloat16_t> {
  // c += a b.
  static __device__ __forceinline__ void add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // Two numbers rounded, `low` in the lower half.
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};
template <>
struct Mma<float16_t> {
  static __device__ __forceinline__ void add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

// Rows of kWidth half-type numbers in shared memory, their 16-byte chunks exchanged so that eight rows of one chunk lie in eight banks.
template <int kWidth>
struct Panel {
  static constexpr int kChunks = kWidth / 8;
  unsigned start;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    return static_cast<unsigned>(row * kWidth * 2 + ((chunk ^ (row & 7)) << 4));
  }
  // A of rows `row` on and columns 16 `step` on.
  __device__ __forceinline__ void a(int row, int step, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    load_matrices(start + offset(row + (lane & 15), 2 * step + (lane >> 4)), r);
  }
  // Two neighbouring B whose columns are rows `row` to `row` + 15 here, and whose rows are columns 16 `step` on.
  __device__ __forceinline__ void b(int row, int step, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    load_matrices(start + offset(row + (lane & 7) + (lane >> 4) * 8, 2 * step + (lane >> 3 & 1)), r);
  }
  // Two neighbouring B whose rows are rows `row` to `row` + 15 here, and whose columns are chunks `chunk` and `chunk` + 1.
  __device__ __forceinline__ void b_transposed(int row, int chunk, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    load_matrices_transposed(start + offset(row + (lane & 15), chunk + (lane >> 4)), r);
  }
  // Bring kRows rows by kThreads threads; `at(row)` is null for a row of zeros, and features from `width` on are zeros.
  template <int kRows, int kThreads, typename T, typename At>
  __device__ __forceinline__ void fetch(const T* any, int width, At at) const {
    static_assert(kThreads % kChunks == 0 && kRows % (kThreads / kChunks) == 0, "whole rows at a time");
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
    for (int row = 0; row < kRows; row += kThreads / kChunks) {
      const T* p = at(row + first);
      const bool valid = p && chunk * 8 < width;
      copy_async(start + offset(row + first, chunk), valid ? p + chunk * 8 : any, valid);
    }
  }
};

}  // namespace dnnarray
