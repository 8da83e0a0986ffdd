// The end of a block of a cluster (sm_90) whose shared memory others read.
#pragma once

namespace dnnarray {

// Until all threads of the cluster have come here. Orders no memory, and so does not wait, as `cluster_barrier` does, until all that was written to global
// memory is there (MEMBAR.ALL.GPU in the machine code); loads that were used are over.
__device__ __forceinline__ void leave_together() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

}  // namespace dnnarray
