// Barriers in shared memory that count arrivals (mbarrier, sm_80) and the bytes that TMA brings (sm_90).
#pragma once

namespace dnnarray {

__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to every unit that may arrive; needs sm_90.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for this many bytes too; needs sm_90.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives once all `cp_async` copies that this thread has issued so far are complete.
__device__ __forceinline__ void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is complete.
#if __CUDA_ARCH__ >= 900
#define DNNARRAY_LOOK "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define DNNARRAY_LOOK "mbarrier.test_wait.parity.shared::cta.b64"
#endif
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
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

// Waits until the phases of these parities of both barriers are complete (sm_90). To wait for one after the other takes
// twice as long.
__device__ __forceinline__ void mbarrier_wait_both(unsigned one, unsigned parity, unsigned other,
                                                   unsigned other_parity) {
  asm volatile(
      "{\n"
      ".reg .pred done, other;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 other, [%2], %3;\n"
      "@!done bra again;\n"
      "@!other bra again;\n"
      "}" ::"r"(one),
      "r"(parity), "r"(other), "r"(other_parity)
      : "memory");
}

}  // namespace dnnarray
