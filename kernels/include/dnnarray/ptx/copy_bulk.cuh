// cp.async.bulk (sm_90): runs of memory by TMA without a description of the array, so many bytes that follow each
// other, from and to multiples of 16.
#pragma once

namespace dnnarray {

// `policy` is one of the second-level cache's (box_policy.cuh).
__device__ __forceinline__ void copy_bulk(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier,
                                          unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(smem),
      "l"(gmem), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace dnnarray
