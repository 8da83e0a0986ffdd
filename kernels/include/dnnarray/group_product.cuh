// Matrix products of a warpgroup on Hopper's matrix units (wgmma, sm_90a): both operands in shared memory, sums in float32 registers.
//
// A panel is rows of 128 bytes, SWIZZLE_128B: 16-byte chunk j of row r lies at r * 128 + (j ^ r % 8) * 16; it begins at a multiple of 1024
// bytes. Operands run along k in their rows (K-major) or, kTransposed, along m or n, 64 of them in a panel.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

// The number of this thread's warpgroup, in a way that tells the compiler it is one for a warp: what follows from it, descriptors of operands above
// all, is then worked out once for the warp and stands ready in uniform registers.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most kPending groups are on their way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Registers that products have written: nothing that reads them moves before this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Of a K-major operand: groups of 8 rows follow each other. 16 elements further along k are 32 bytes.
__device__ __forceinline__ unsigned long long panel(unsigned smem) {
  return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((smem & 0x3ffff) >> 4);
}

// Of a transposed operand: `next` bytes lie between panels of 64; groups of 8 along k follow each other. 16 further along k are 2048 bytes.
__device__ __forceinline__ unsigned long long transposed_panel(unsigned smem, unsigned next) {
  return (1ull << 62) | (64ull << 32) | (static_cast<unsigned long long>(next >> 4) << 16) | ((smem & 0x3ffff) >> 4);
}

// Of rows of kBytes, 32, 64 or 128, SWIZZLE_32B, SWIZZLE_64B or SWIZZLE_128B, that are as long as the operand's other extent: eight rows follow each other, along k or,
// of a transposed operand, along k too. It begins at a multiple of 8 kBytes.
template <int kBytes>
__device__ __forceinline__ unsigned long long narrow_panel(unsigned smem) {
  static_assert(kBytes == 32 || kBytes == 64 || kBytes == 128, "no such swizzle");
  constexpr unsigned long long kSwizzle = kBytes == 32 ? 3 : kBytes == 64 ? 2 : 1;
  return (kSwizzle << 62) | (static_cast<unsigned long long>(kBytes / 2) << 32) | (1ull << 16) | ((smem & 0x3ffff) >> 4);
}

// sums (64 x N) += a (64 x 16) b (16 x N), of float (TF32) 8 of a row. Thread t of the warpgroup holds, of row t / 32 * 16 + t % 32 / 4 (+ 8 for odd i / 2), the columns
// i / 4 * 8 + t % 4 * 2 + i % 2 as element i.
template <typename T, bool kTransposedA, bool kTransposedB, int kCount>
struct Wgmma;

// The statement for one width: lists of operands are what makes it long.
#define DNNARRAY_WGMMA_8(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3" \
               "}, %4, %5, 1, 1, 1" turned(", %6, %7") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_16(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7" \
               "}, %8, %9, 1, 1, 1" turned(", %10, %11") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_32(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
               "}, %16, %17, 1, 1, 1" turned(", %18, %19") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_64(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
               "}, %32, %33, 1, 1, 1" turned(", %34, %35") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_128(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
               "}, %64, %65, 1, 1, 1" turned(", %66, %67") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_192(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
               "}, %96, %97, 1, 1, 1" turned(", %98, %99") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_WGMMA_256(k, kind, turned)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k" k ".f32." kind "." kind " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
               "}, %128, %129, 1, 1, 1" turned(", %130, %131") ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), \
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
                 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
                 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
                 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
                 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127]) \
               : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB))

#define DNNARRAY_TURNED(which) which
#define DNNARRAY_STRAIGHT(which)
#define DNNARRAY_WGMMA(width, type, kind)                                                                                       \
  template <bool kTransposedA, bool kTransposedB>                                                                             \
  struct Wgmma<type, kTransposedA, kTransposedB, width> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[width / 2], unsigned long long a, unsigned long long b) {           \
      DNNARRAY_WGMMA_##width("16", kind, DNNARRAY_TURNED);                                                                                           \
    }                                                                                                                         \
  };
DNNARRAY_WGMMA(16, bfloat16_t, "bf16")
DNNARRAY_WGMMA(32, bfloat16_t, "bf16")
DNNARRAY_WGMMA(64, bfloat16_t, "bf16")
DNNARRAY_WGMMA(128, bfloat16_t, "bf16")
DNNARRAY_WGMMA(192, bfloat16_t, "bf16")
DNNARRAY_WGMMA(256, bfloat16_t, "bf16")
DNNARRAY_WGMMA(16, float16_t, "f16")
DNNARRAY_WGMMA(32, float16_t, "f16")
DNNARRAY_WGMMA(64, float16_t, "f16")
DNNARRAY_WGMMA(128, float16_t, "f16")
DNNARRAY_WGMMA(192, float16_t, "f16")
DNNARRAY_WGMMA(256, float16_t, "f16")
#undef DNNARRAY_WGMMA

// TF32: 16 elements of 4 bytes would be two of these; both operands K-major. The lowest 13 bits of a number count for nothing.
#define DNNARRAY_WGMMA(width)                                                                                       \
  template <>                                                                                                       \
  struct Wgmma<float, false, false, width> {                                                                        \
    static __device__ __forceinline__ void run(float (&d)[width / 2], unsigned long long a, unsigned long long b) { \
      constexpr bool kTransposedA = false, kTransposedB = false;                                                    \
      DNNARRAY_WGMMA_##width("8", "tf32", DNNARRAY_STRAIGHT);                                                       \
    }                                                                                                               \
  };
DNNARRAY_WGMMA(8)
DNNARRAY_WGMMA(16)
DNNARRAY_WGMMA(32)
DNNARRAY_WGMMA(64)
DNNARRAY_WGMMA(128)
DNNARRAY_WGMMA(256)
#undef DNNARRAY_WGMMA

}  // namespace dnnarray
