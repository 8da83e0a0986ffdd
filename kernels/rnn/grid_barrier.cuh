// A barrier among blocks that are all resident: a counter in global memory, zero at the kernel's start, to which each block adds 1 per round.
#pragma once

namespace dnnarray {

__device__ __forceinline__ void add_release(unsigned* counter, unsigned n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter) {
  unsigned n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}

struct GridBarrier {
  unsigned* counter;
  unsigned members, awaited;

  // Everything that this block has written is there for those that have waited.
  __device__ __forceinline__ void arrive() const {
    __syncthreads();
    if (threadIdx.x == 0) add_release(counter, 1);
  }
  __device__ __forceinline__ void wait() {
    awaited += members;
    if (threadIdx.x == 0) {
      while (static_cast<int>(load_acquire(counter) - awaited) < 0) {
      }
    }
    __syncthreads();
  }
};

// One float, or four, past the L1, which does not see what other multiprocessors have written.
__device__ __forceinline__ float load_scalar_between_blocks(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_between_blocks(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

}  // namespace dnnarray
