// TMA (cp.async.bulk, sm_90): boxes of an array that a tensor map describes come into shared memory as panels
// (mma/warpgroup.cuh). One thread asks for a box; a barrier (mbarrier.cuh) counts its bytes as they arrive. What lies
// outside of the array arrives as zeros.
//
// Coordinates run from the fastest axis to the slowest. Windows: the box holds the channels of neighbouring pixels of
// the result, in the order of the result, each moved by a tap's distance from where its window begins.
#pragma once

namespace dnnarray {

// A launch argument, `const __grid_constant__`.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

struct BoxPlace {
  int at[5];
};

// A box of an array of five axes.
__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap& map, unsigned barrier, const BoxPlace& p) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4])
      : "memory");
}

// An L2 policy for lines of which several blocks read parts: lines of this policy are evicted last, so that no block
// asks memory again. Measured, an L2 full of lines that are to be written back evicts what was only read, however new.
// The policy is not for results, which would stay in the way of later kernels.
__device__ __forceinline__ unsigned long long createpolicy_evict_last() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same with an L2 policy.
__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap& map, unsigned barrier, const BoxPlace& p,
                                         unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4]), "l"(policy)
      : "memory");
}

// Contiguous bytes without a tensor map; both addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void tma_load_bulk(unsigned smem, const void* gmem, unsigned bytes, unsigned barrier,
                                              unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(smem),
      "l"(gmem), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Where the windows of a box begin, and how far the tap is from there.
struct WindowPlace {
  int c, w, h, d, n;
};
struct TapPlace {
  unsigned short w, h, d;
};

// kAxes of space, 2 or 3.
template <int kAxes>
__device__ __forceinline__ void tma_load_im2col(unsigned smem, const TensorMap& map, unsigned barrier,
                                                const WindowPlace& p, const TapPlace& tap) {
  if constexpr (kAxes == 2) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(smem),
        "l"(&map), "r"(barrier), "r"(p.c), "r"(p.w), "r"(p.h), "r"(p.n), "h"(tap.w), "h"(tap.h)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, "
        "%10};" ::"r"(smem),
        "l"(&map), "r"(barrier), "r"(p.c), "r"(p.w), "r"(p.h), "r"(p.d), "r"(p.n), "h"(tap.w), "h"(tap.h), "h"(tap.d)
        : "memory");
  }
}

// The other way: neighbouring pixels of the result from shared memory; what lies outside of the array stays there.
// Stores run on by themselves, in groups that the thread that asks commits, and what other threads wrote needs
// fence_proxy_async in each of them and a barrier first.
template <int kAxes>
__device__ __forceinline__ void tma_store_im2col(unsigned smem, const TensorMap& map, const WindowPlace& p) {
  if constexpr (kAxes == 2) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(
            smem),
        "l"(&map), "r"(p.c), "r"(p.w), "r"(p.h), "r"(p.n)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(
            smem),
        "l"(&map), "r"(p.c), "r"(p.w), "r"(p.h), "r"(p.d), "r"(p.n)
        : "memory");
  }
}

// The same for a box of an array of five axes.
__device__ __forceinline__ void tma_store(unsigned smem, const TensorMap& map, const BoxPlace& p) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(smem),
               "l"(&map), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4])
               : "memory");
}

__device__ __forceinline__ void tma_store_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending groups have yet to read their shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnnarray
