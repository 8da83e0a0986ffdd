// Runs of rows by TMA (sm_90).
#pragma once

#include "dnnarray/ptx/box_policy.cuh"
#include "dnnarray/ptx/copy_bulk.cuh"

namespace dnnarray {

// Of rows that a neighbour's run may have too, so they are kept.
__device__ __forceinline__ void copy_run(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier) {
  copy_bulk(smem, gmem, bytes, barrier, keep_lines());
}

}  // namespace dnnarray
