// Runs of rows by TMA (sm_90).
#pragma once

#include "dnnarray/ptx/tma.cuh"

namespace dnnarray {

// A neighbouring block may read the same rows, so they stay in the L2.
__device__ __forceinline__ void copy_run(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier) {
  tma_load_bulk(smem, gmem, bytes, barrier, createpolicy_evict_last());
}

}  // namespace dnnarray
