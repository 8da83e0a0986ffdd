// cp.async (from sm_80 on): copies from device to shared memory that bypass the registers and run while the thread goes
// on.
#pragma once

#include "dnnarray/ptx/memory.cuh"

namespace dnnarray {

// Copies 16 bytes; complete for the thread itself after `cp_async_wait_group`.
__device__ __forceinline__ void cp_async_cg(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Copies 16 bytes, or writes zeros where `there` is false; `from` is not read then.
__device__ __forceinline__ void cp_async_cg(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// The same; the whole line of 128 bytes comes to the L2.
__device__ __forceinline__ void cp_async_cg_l2_128b(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// Copies 4 or 8 bytes by way of the L1, which `cg` passes by.
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes)
               : "memory");
}
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(there ? kBytes : 0),
               "n"(kBytes)
               : "memory");
}

// Copies 4, 8 or 16 bytes, or writes zeros where `there` is false.
template <int kBytes>
__device__ __forceinline__ void cp_async(unsigned to, const void* from, bool there) {
  if constexpr (kBytes == 16) {
    cp_async_cg(to, from, there);
  } else {
    cp_async_ca<kBytes>(to, from, there);
  }
}

__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of the latest committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnnarray
