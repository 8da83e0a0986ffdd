// The copy engine (TMA, sm_90): boxes of an array that a tensor map describes, into shared memory as panels
// (mma/warpgroup.cuh). One thread asks for a box; a barrier (mbarrier.cuh) counts its bytes as they arrive. What lies
// outside of the array arrives as zeros.
//
// Coordinates run from the fastest axis to the slowest. Windows: the box holds the channels of neighbouring pixels of
// the result, in the order of the result, each moved by a tap's distance from where its window begins.
#pragma once

#include "dnnarray/ptx/mbarrier.cuh"

namespace dnnarray {

// A launch argument, `const __grid_constant__`.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Arrives, and makes the phase wait for this many bytes too.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

struct BoxPlace {
  int at[5];
};

// A box of an array of five axes.
__device__ __forceinline__ void copy_box(unsigned smem, const TensorMap& map, unsigned barrier, const BoxPlace& p) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4])
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
__device__ __forceinline__ void copy_windows(unsigned smem, const TensorMap& map, unsigned barrier,
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
// fence_async in each of them and a barrier first.
template <int kAxes>
__device__ __forceinline__ void store_windows(unsigned smem, const TensorMap& map, const WindowPlace& p) {
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
__device__ __forceinline__ void store_box(unsigned smem, const TensorMap& map, const BoxPlace& p) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(smem),
               "l"(&map), "r"(p.at[0]), "r"(p.at[1]), "r"(p.at[2]), "r"(p.at[3]), "r"(p.at[4])
               : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending groups have yet to read their shared memory.
template <int kPending>
__device__ __forceinline__ void stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnnarray
