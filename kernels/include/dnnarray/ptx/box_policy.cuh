// Boxes of the copy engine (tma.cuh) with a word for the second-level cache about how long their lines are to stay.
#pragma once

#include "dnnarray/ptx/tma.cuh"

namespace dnnarray {

// For lines of which several blocks take parts, so that none of them asks memory again. By the times, a cache that is
// full of unwritten lines makes room by what was only read, however new; lines of this policy go last. Not for results:
// what is written so stays in the way of later kernels.
__device__ __forceinline__ unsigned long long keep_lines() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A box of an array of five axes.
__device__ __forceinline__ void copy_box(unsigned smem, const TensorMap& map, unsigned barrier, const BoxPlace& p,
                                         unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4]), "l"(policy)
      : "memory");
}

}  // namespace dnnarray
