// Clusters of thread blocks (from sm_90 on), copies to shared memory that run by themselves, and values of warps
// brought together over a cluster. With one block everything here is a plain block's and compiles for sm_80.
#pragma once

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/ptx/cluster.cuh"
#include "dnnarray/ptx/cp_async.cuh"

namespace dnnarray {

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
  st_shared_cluster(mapa(here, block), value);
}

// Four numbers from the place of `here` in the shared memory of another block of the cluster.
__device__ __forceinline__ Vec<float, 4> load_remote(const float* here, int block) {
  Vec<float, 4> v;
  ld_shared_cluster_v4(v.at, mapa(here, block));
  return v;
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
