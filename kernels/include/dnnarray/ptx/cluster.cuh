// Clusters of thread blocks (from sm_90 on): their barrier, and the shared memory of the other blocks.
#pragma once

#include "dnnarray/ptx/memory.cuh"

#if __CUDA_ARCH__ >= 900
#define DNNARRAY_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define DNNARRAY_CLUSTER(blocks)
#endif

namespace dnnarray {

// All threads of the cluster arrive; a thread that has waited sees what the others wrote before they arrived.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Until all threads of the cluster have come here. Orders no memory, and so does not wait, as the two above do, until
// all that was written to global memory is there (MEMBAR.ALL.GPU in the machine code).
__device__ __forceinline__ void cluster_arrive_and_wait_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The address of `here` in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned mapa(const void* here, int block) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
  return there;
}
__device__ __forceinline__ void st_shared_cluster(unsigned there, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
__device__ __forceinline__ void st_shared_cluster_v4(unsigned there, const float (&v)[4]) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}
__device__ __forceinline__ void ld_shared_cluster_v4(float (&v)[4], unsigned there) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(there)
               : "memory");
}

}  // namespace dnnarray
