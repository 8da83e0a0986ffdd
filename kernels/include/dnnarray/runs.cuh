// Runs of memory by the copy engine (sm_90) without a description of the array: so many bytes that follow each other, from and to multiples of 16.
#pragma once

#include "dnnarray/tma.cuh"

namespace dnnarray {

__device__ __forceinline__ void copy_run(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(gmem), "r"(bytes),
               "r"(barrier)
               : "memory");
}

}  // namespace dnnarray
