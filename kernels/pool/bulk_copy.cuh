// Runs of memory by the copy engine (sm_90) without a description of the array: so many bytes that follow each other, from and to multiples of 16.
#pragma once

#include "dnnarray/box_policy.cuh"

namespace dnnarray {

// Of rows that a neighbour's run may have too, so they are kept.
__device__ __forceinline__ void copy_run(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(smem), "l"(gmem),
               "r"(bytes), "r"(barrier), "l"(keep_lines())
               : "memory");
}

}  // namespace dnnarray
