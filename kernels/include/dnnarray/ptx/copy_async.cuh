// cp.async (from sm_80 on): copies from device to shared memory that bypass the registers and run while the thread goes
// on.
#pragma once

#include "dnnarray/ptx/memory.cuh"

namespace dnnarray {

// Sixteen bytes; complete for the thread itself after `copies_wait`.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// The same, or zeros where `there` is false; `from` is not read then.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Four or eight bytes.
template <int kBytes>
__device__ __forceinline__ void copy_piece_async(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes)
               : "memory");
}
__device__ __forceinline__ void copies_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of the latest committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnnarray
