// Matrix products of a warpgroup on Hopper's tensor cores (ptx/wgmma.cuh): both operands in shared memory, sums in
// float32 registers.
//
// A panel is rows of 128 bytes, SWIZZLE_128B: 16-byte chunk j of row r lies at r * 128 + (j ^ r % 8) * 16; it begins at
// a multiple of 1024 bytes. Operands run along k in their rows (K-major) or, kTransposed, along m or n, 64 of them in a
// panel.
#pragma once

#include "dnnarray/ptx/wgmma.cuh"

namespace dnnarray {

// The number of this thread's warpgroup, in a way that tells the compiler it is one for a warp: what follows from it,
// descriptors of operands above all, is then worked out once for the warp and stands ready in uniform registers.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

// Registers that products have written: nothing that reads them moves before this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) wgmma_fence_operand(d[i]);
}

// Sums in tiles of eight columns as the instructions take them.
template <int kTiles>
__device__ __forceinline__ float (&flat(float (&c)[kTiles][4]))[4 * kTiles] {
  return reinterpret_cast<float (&)[4 * kTiles]>(c);
}
template <int kTiles>
__device__ __forceinline__ void hold(float (&c)[kTiles][4]) {
  hold(flat(c));
}

// Of a K-major operand: groups of 8 rows follow each other. 16 elements further along k are 32 bytes.
__device__ __forceinline__ unsigned long long panel(unsigned smem) {
  return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((smem & 0x3ffff) >> 4);
}

// Of a transposed operand: `next` bytes lie between panels of 64; groups of 8 along k follow each other. 16 further
// along k are 2048 bytes.
__device__ __forceinline__ unsigned long long transposed_panel(unsigned smem, unsigned next) {
  return (1ull << 62) | (64ull << 32) | (static_cast<unsigned long long>(next >> 4) << 16) | ((smem & 0x3ffff) >> 4);
}

// Of rows of kBytes, 32, 64 or 128, SWIZZLE_32B, SWIZZLE_64B or SWIZZLE_128B, that are as long as the operand's other
// extent: eight rows follow each other along k. It begins at a multiple of 8 kBytes.
template <int kBytes>
__device__ __forceinline__ unsigned long long narrow_panel(unsigned smem) {
  static_assert(kBytes == 32 || kBytes == 64 || kBytes == 128, "no such swizzle");
  constexpr unsigned long long kSwizzle = kBytes == 32 ? 3 : kBytes == 64 ? 2 : 1;
  constexpr unsigned long long kStep = kBytes / 2;  // eight rows, in units of 16 bytes
  return (kSwizzle << 62) | (kStep << 32) | (1ull << 16) | ((smem & 0x3ffff) >> 4);
}

}  // namespace dnnarray
