// Matrix instructions of four warps (sm_90a): 64 x N x 16 products of half types, summed in float, asynchronous; and panels of shared memory
// in the order that they read, rows of 128 bytes whose 16-byte chunks are exchanged by the row's place among eight.
//
// The sums of a warp lie as those of mma.cuh: tile n of eight columns is C of rows 16 warp to 16 warp + 15. A from registers likewise.
#pragma once

#include "dnnarray/mma.cuh"

namespace dnnarray {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// What threads wrote to shared memory is seen by the matrix instructions after the next barrier.
__device__ __forceinline__ void shared_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers that a running instruction writes: neither read nor moved across this point.
template <int kTiles>
__device__ __forceinline__ void hold(float (&c)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
}

// 64-element panels of kRows rows: where they begin, and what the instructions are told of them.
template <int kRows, int kWidth>
struct Panels {
  static constexpr int kChunks = kWidth / 8;
  static constexpr unsigned kBytes = kRows * kWidth * 2, kOne = kRows * 128;
  unsigned start;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    return chunk / 8 * kOne + row * 128 + ((chunk % 8 ^ (row & 7)) << 4);
  }
  // Rows `row` on as rows of A or columns of B, features 16 `step` on.
  __device__ __forceinline__ unsigned long long across(int row, int step) const {
    const unsigned at = start + step / 4 * kOne + row * 128 + step % 4 * 32;
    return static_cast<unsigned long long>(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
  }
  // All features as columns of B, rows 16 `step` on as its rows.
  __device__ __forceinline__ unsigned long long down(int step) const {
    const unsigned at = start + step * 2048;
    return static_cast<unsigned long long>(at >> 4) | static_cast<unsigned long long>(kOne >> 4) << 16 | 64ull << 32 | 1ull << 62;
  }
  // As Panel::fetch.
  template <int kThreads, typename T, typename At>
  __device__ __forceinline__ void fetch(const T* any, int width, At at) const {
    static_assert(kThreads % kChunks == 0, "whole rows at a time");
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
    for (int row = 0; row < kRows; row += kThreads / kChunks) {
      if (kRows % (kThreads / kChunks) != 0 && row + first >= kRows) break;
      const T* p = at(row + first);
      const bool valid = p && chunk * 8 < width;
      copy_async(start + offset(row + first, chunk), valid ? p + chunk * 8 : any, valid);
    }
  }
};

// One instruction: c = a b, or c += a b with `add`. `shared`: A and B from panels, features running along; `registers`: A as it stands, B with
// its columns running along.
template <typename T, int kColumns>
struct Wgmma;

#define DNNARRAY_C1(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define DNNARRAY_C8(n) \
  DNNARRAY_C1(n), DNNARRAY_C1(n + 1), DNNARRAY_C1(n + 2), DNNARRAY_C1(n + 3), DNNARRAY_C1(n + 4), DNNARRAY_C1(n + 5), DNNARRAY_C1(n + 6), \
      DNNARRAY_C1(n + 7)

#define DNNARRAY_D64 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31"
#define DNNARRAY_WGMMA64(type, name)                                                                                       \
  template <>                                                                                                               \
  struct Wgmma<type, 64> {                                                                                                  \
    static __device__ __forceinline__ void shared(float (&c)[8][4], unsigned long long a, unsigned long long b, bool add) { \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" \
                   DNNARRAY_D64 "}, %32, %33, p, 1, 1, 0, 0;}"                                                          \
                   : DNNARRAY_C8(0)                                                                                                  \
                   : "l"(a), "l"(b), "r"(int(add)));                                                                        \
    }                                                                                                                       \
    static __device__ __forceinline__ void registers(float (&c)[8][4], const unsigned (&a)[4], unsigned long long b) {      \
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {"                                        \
                   DNNARRAY_D64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                     \
                   : DNNARRAY_C8(0)                                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                   \
    }                                                                                                                       \
  }
DNNARRAY_WGMMA64(bfloat16_t, "bf16");
DNNARRAY_WGMMA64(float16_t, "f16");

#define DNNARRAY_D128 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DNNARRAY_WGMMA128(type, name)                                                                                       \
  template <>                                                                                                               \
  struct Wgmma<type, 128> {                                                                                                  \
    static __device__ __forceinline__ void shared(float (&c)[16][4], unsigned long long a, unsigned long long b, bool add) { \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {" \
                   DNNARRAY_D128 "}, %64, %65, p, 1, 1, 0, 0;}"                                                          \
                   : DNNARRAY_C8(0), DNNARRAY_C8(8)                                                                                                  \
                   : "l"(a), "l"(b), "r"(int(add)));                                                                        \
    }                                                                                                                       \
    static __device__ __forceinline__ void registers(float (&c)[16][4], const unsigned (&a)[4], unsigned long long b) {      \
      asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {"                                        \
                   DNNARRAY_D128 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                     \
                   : DNNARRAY_C8(0), DNNARRAY_C8(8)                                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                   \
    }                                                                                                                       \
  }
DNNARRAY_WGMMA128(bfloat16_t, "bf16");
DNNARRAY_WGMMA128(float16_t, "f16");

#define DNNARRAY_D256 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, " \
      "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, " \
      "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
      "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define DNNARRAY_WGMMA256(type, name)                                                                                       \
  template <>                                                                                                               \
  struct Wgmma<type, 256> {                                                                                                  \
    static __device__ __forceinline__ void shared(float (&c)[32][4], unsigned long long a, unsigned long long b, bool add) { \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name " {" \
                   DNNARRAY_D256 "}, %128, %129, p, 1, 1, 0, 0;}"                                                          \
                   : DNNARRAY_C8(0), DNNARRAY_C8(8), DNNARRAY_C8(16), DNNARRAY_C8(24)                                                                                                  \
                   : "l"(a), "l"(b), "r"(int(add)));                                                                        \
    }                                                                                                                       \
    static __device__ __forceinline__ void registers(float (&c)[32][4], const unsigned (&a)[4], unsigned long long b) {      \
      asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name " {"                                        \
                   DNNARRAY_D256 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                     \
                   : DNNARRAY_C8(0), DNNARRAY_C8(8), DNNARRAY_C8(16), DNNARRAY_C8(24)                                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                   \
    }                                                                                                                       \
  }
DNNARRAY_WGMMA256(bfloat16_t, "bf16");
DNNARRAY_WGMMA256(float16_t, "f16");

}  // namespace dnnarray
