// Runs of memory by the copy engine (sm_90) without a description of the array: so many bytes that follow each other, from and to multiples of 16.
#pragma once

#include "dnnarray/barrier.cuh"

namespace dnnarray {

// Arrives, and makes the phase wait for this many bytes too.
__device__ __forceinline__ void expect_bytes(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_run(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(gmem), "r"(bytes),
               "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_run(void* gmem, unsigned smem, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem), "r"(bytes) : "memory");
}

}  // namespace dnnarray
