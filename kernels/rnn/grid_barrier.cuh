// A barrier among blocks that are all resident: a counter in global memory, zero at the kernel's start, to which each
// block adds 1 per round.
#pragma once

#include "dnnarray/ptx/memory.cuh"

namespace dnnarray {

struct GridBarrier {
  unsigned* counter;
  unsigned members, awaited;

  // Everything that this block has written is there for those that have waited.
  __device__ __forceinline__ void arrive() const {
    __syncthreads();
    if (threadIdx.x == 0) red_release_add(counter, 1);
  }
  __device__ __forceinline__ void wait() {
    awaited += members;
    if (threadIdx.x == 0) {
      while (static_cast<int>(ld_acquire(counter) - awaited) < 0) {}
    }
    __syncthreads();
  }
};

}  // namespace dnnarray
