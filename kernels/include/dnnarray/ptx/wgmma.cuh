// Matrix products of a warpgroup on Hopper's tensor cores (sm_90a), asynchronous: sums (64 x N) from a (64 x k) and
// b (k x N), k being 16 for half types and 8 for float as TF32, whose lowest 13 bits count for nothing. A descriptor
// (mma/warpgroup.cuh) says where an operand lies in shared memory.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// A register that products have written: nothing that reads it or memory moves before this point.
__device__ __forceinline__ void wgmma_fence_operand(float& d) { asm volatile("" : "+f"(d)::"memory"); }

// Waits until at most kPending groups are on their way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// `run` adds a product to sums, `start` begins them with it. Thread t of the warpgroup holds, of row t / 32 * 16 +
// t % 32 / 4 (+ 8 for odd i / 2), the columns i / 4 * 8 + t % 4 * 2 + i % 2 as element i. A in registers lies as that
// of a warp's products (mma/warp.cuh), for rows t / 32 * 16 on. A transposed operand runs along m or n in its rows, any
// other along k.
template <typename T, bool kTransposedA, bool kTransposedB, int kCount>
struct Wgmma;

// The sums as operands, and the names of so many.
#define DNNARRAY_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DNNARRAY_SUMS_8(i) DNNARRAY_SUMS_4(i), DNNARRAY_SUMS_4(i + 4)
#define DNNARRAY_SUMS_16(i) DNNARRAY_SUMS_8(i), DNNARRAY_SUMS_8(i + 8)
#define DNNARRAY_SUMS_32(i) DNNARRAY_SUMS_16(i), DNNARRAY_SUMS_16(i + 16)
#define DNNARRAY_SUMS_64(i) DNNARRAY_SUMS_32(i), DNNARRAY_SUMS_32(i + 32)
#define DNNARRAY_SUMS_128(i) DNNARRAY_SUMS_64(i), DNNARRAY_SUMS_64(i + 64)
#define DNNARRAY_SUMS_96(i) DNNARRAY_SUMS_64(i), DNNARRAY_SUMS_32(i + 64)
#define DNNARRAY_NAMES_4 "%0, %1, %2, %3"
#define DNNARRAY_NAMES_8 DNNARRAY_NAMES_4 ", %4, %5, %6, %7"
#define DNNARRAY_NAMES_16 DNNARRAY_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DNNARRAY_NAMES_32 \
  DNNARRAY_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DNNARRAY_NAMES_64                                                            \
  DNNARRAY_NAMES_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DNNARRAY_NAMES_96                                                            \
  DNNARRAY_NAMES_64                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DNNARRAY_NAMES_128                                                                       \
  DNNARRAY_NAMES_96                                                                              \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// `of` stands for the instruction's shape and types; p0 to p5 are the names behind those of the sums.
#define DNNARRAY_WGMMA(type, of, width, count, p0, p1, p2, p3, p4, p5)                                  \
  template <bool kTransposedA, bool kTransposedB>                                                       \
  struct Wgmma<type, kTransposedA, kTransposedB, width> {                                               \
    using Sums = float[count];                                                                          \
    static __device__ __forceinline__ void run(Sums& d, unsigned long long a, unsigned long long b) {   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #width of " {" DNNARRAY_NAMES_##count            \
                   "}, " p0 ", " p1 ", 1, 1, 1, " p2 ", " p3 ";"                                        \
                   : DNNARRAY_SUMS_##count(0)                                                           \
                   : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB));                             \
    }                                                                                                   \
    static __device__ __forceinline__ void start(Sums& d, unsigned long long a, unsigned long long b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #width of " {" DNNARRAY_NAMES_##count            \
                   "}, " p0 ", " p1 ", 0, 1, 1, " p2 ", " p3 ";"                                        \
                   : DNNARRAY_SUMS_##count(0)                                                           \
                   : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB));                             \
    }                                                                                                   \
    static __device__ __forceinline__ void run(Sums& d, const unsigned (&a)[4], unsigned long long b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #width of " {" DNNARRAY_NAMES_##count            \
                   "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4 ", 1, 1, 1, " p5 ";"                      \
                   : DNNARRAY_SUMS_##count(0)                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposedB));            \
    }                                                                                                   \
  };
#define DNNARRAY_WGMMA_WIDTHS(type, of)                                         \
  DNNARRAY_WGMMA(type, of, 16, 8, "%8", "%9", "%10", "%11", "%12", "%13")       \
  DNNARRAY_WGMMA(type, of, 32, 16, "%16", "%17", "%18", "%19", "%20", "%21")    \
  DNNARRAY_WGMMA(type, of, 64, 32, "%32", "%33", "%34", "%35", "%36", "%37")    \
  DNNARRAY_WGMMA(type, of, 128, 64, "%64", "%65", "%66", "%67", "%68", "%69")   \
  DNNARRAY_WGMMA(type, of, 192, 96, "%96", "%97", "%98", "%99", "%100", "%101") \
  DNNARRAY_WGMMA(type, of, 256, 128, "%128", "%129", "%130", "%131", "%132", "%133")
DNNARRAY_WGMMA_WIDTHS(bfloat16_t, "k16.f32.bf16.bf16")
DNNARRAY_WGMMA_WIDTHS(float16_t, "k16.f32.f16.f16")

#define DNNARRAY_WGMMA_TF32(width, count, p0, p1)                                                               \
  template <>                                                                                                   \
  struct Wgmma<float, false, false, width> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[count], unsigned long long a, unsigned long long b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k8.f32.tf32.tf32 {" DNNARRAY_NAMES_##count       \
                   "}, " p0 ", " p1 ", 1, 1, 1;"                                                                \
                   : DNNARRAY_SUMS_##count(0)                                                                   \
                   : "l"(a), "l"(b));                                                                           \
    }                                                                                                           \
  };
DNNARRAY_WGMMA_TF32(8, 4, "%4", "%5")
DNNARRAY_WGMMA_TF32(16, 8, "%8", "%9")
DNNARRAY_WGMMA_TF32(32, 16, "%16", "%17")
DNNARRAY_WGMMA_TF32(64, 32, "%32", "%33")
DNNARRAY_WGMMA_TF32(128, 64, "%64", "%65")
DNNARRAY_WGMMA_TF32(256, 128, "%128", "%129")

}  // namespace dnnarray
