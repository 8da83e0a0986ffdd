// Clusters of thread blocks (from sm_90 on), copies to shared memory that run by themselves, and values of warps brought together over a
// cluster. With one block everything here is a plain block's and compiles for sm_80.
#pragma once

#include "dnnarray/reduce.cuh"
#include "dnnarray/vec.cuh"

#if __CUDA_ARCH__ >= 900
#define DNNARRAY_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define DNNARRAY_CLUSTER(blocks)
#endif

namespace dnnarray {

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// All threads of the cluster arrive; who has waited sees what the others wrote before they arrived.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

template <int kBlocks>
__device__ __forceinline__ void cluster_barrier() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

// Writes to the place of `here` in the shared memory of another block of the cluster.
__device__ __forceinline__ void store_remote(float* here, int block, float value) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}

// Four numbers from the place of `here` in the shared memory of another block of the cluster.
__device__ __forceinline__ Vec<float, 4> load_remote(const float* here, int block) {
  Vec<float, 4> v;
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3]) : "r"(there) : "memory");
  return v;
}

// Sixteen bytes from device to shared memory, past the registers; complete for the thread itself after `copies_wait`.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the latest committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// kValues numbers of each warp of each block of a cluster, the same table in every block.
template <int kBlocks, int kThreads, int kValues>
struct Gathered {
  static constexpr int kWarps = kThreads / kWarp, kEntries = kBlocks * kWarps;
  float at[kValues][kEntries];

  // `mine` is the same in all lanes of a warp. A barrier of the cluster must follow before anybody reads.
  __device__ __forceinline__ void put(const float (&mine)[kValues], int rank) {
    const int lane = threadIdx.x % kWarp, entry = rank * kWarps + threadIdx.x / kWarp;
    if (lane >= kBlocks) return;
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      if constexpr (kBlocks == 1) {
        at[v][entry] = mine[v];
      } else {
        store_remote(&at[v][entry], lane, mine[v]);
      }
    }
  }

  // The entries of one value reduced, in the same order for everybody; `value(entry)` gives them.
  template <typename Op, typename F>
  static __device__ __forceinline__ float reduce(Op op, F value) {
    float all = op.template identity<float>();
#pragma unroll
    for (int first = 0; first < kEntries; first += kWarp) {
      const int entry = first + threadIdx.x % kWarp;
      if (kEntries % kWarp == 0 || entry < kEntries) all = op(all, value(entry));
    }
    return warp_reduce(all, op);
  }

  // The sums of the first two values, in the same order for everybody: half of a warp adds up the entries of each.
  __device__ __forceinline__ void sum_both(float& first, float& second) const {
    static_assert(kValues >= 2, "two values");
    constexpr int kHalf = kWarp / 2, kLanes = kEntries < kHalf ? kEntries : kHalf;
    const int lane = threadIdx.x % kWarp, value = lane / kHalf;
    float mine = 0;
#pragma unroll
    for (int entry = 0; entry < kEntries; entry += kLanes) mine += at[value][entry + lane % kLanes];
    mine = warp_sum<kLanes>(mine);
    const float other = __shfl_xor_sync(kAllLanes, mine, kHalf);
    first = value == 0 ? mine : other, second = value == 0 ? other : mine;
  }
};

}  // namespace dnnarray
