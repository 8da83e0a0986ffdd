// Barriers in shared memory that count arrivals (mbarrier, sm_90), and copies into shared memory that run on by
// themselves (cp.async, sm_80).
#pragma once

#include "dnnarray/ptx/copy_async.cuh"

namespace dnnarray {

__device__ __forceinline__ unsigned smem_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// --- cp.async
// ---------------------------------------------------------------------------------------------------------

// 4, 8 or 16 bytes, or zeros where `there` is false.
template <int kBytes>
__device__ __forceinline__ void copy_piece_async(unsigned smem, const void* gmem, bool there) {
  if constexpr (kBytes == 16) {
    copy_async(smem, gmem, there);
  } else {
    const int bytes = there ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(smem), "l"(gmem), "r"(bytes), "n"(kBytes)
                 : "memory");
  }
}

// --- mbarrier
// ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to every unit that may arrive.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once all copies that this thread has issued so far are there.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of this parity is complete.
#if __CUDA_ARCH__ >= 900
#define DNNARRAY_LOOK "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define DNNARRAY_LOOK "mbarrier.test_wait.parity.shared::cta.b64"
#endif
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n" DNNARRAY_LOOK
      " done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
#undef DNNARRAY_LOOK

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The stage of a ring that a producer or a consumer is at, and the parity of its barriers.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace dnnarray
