// A kernel that begins while the one before it ends (a plan's `early` or `ahead`; from sm_90 on): launched as soon as
// every block of that one has called `let_next_kernel_begin`, it may read at once what that one did not write, and
// waits where it needs the rest.
#pragma once

#include "dnnarray/ptx/dependent_launch.cuh"

namespace dnnarray {

// Has a meaning for the launch behind this one only where that overlaps.
__device__ __forceinline__ void let_next_kernel_begin() { griddepcontrol_launch_dependents(); }

// What a small launch is compiled with (`ahead_if_small`).
#ifdef DNNARRAY_AHEAD
constexpr bool kBeginsAhead = true;
#else
constexpr bool kBeginsAhead = false;
#endif

__device__ __forceinline__ void begin_ahead() {
  if constexpr (kBeginsAhead) let_next_kernel_begin();
}

// Waits until the kernel before has ended; gives the pointer to something that it wrote, as the only way to it. Some
// thread of a kernel that is launched early must come here, or the kernel behind it does not wait for the one before it
// either.
template <typename P>
__device__ __forceinline__ P* after_previous_kernel(P* p) {
#if __CUDA_ARCH__ >= 900
  griddepcontrol_wait();
  p = unknown_before(p);
#endif
  return p;
}

// The same for all that a kernel which begins ahead reads, in place, and with one wait. The first is never null.
template <typename P, typename... More>
__device__ __forceinline__ void take_after_previous_kernel(P& first, More&... more) {
#if __CUDA_ARCH__ >= 900 && defined(DNNARRAY_AHEAD)
  griddepcontrol_wait_having(first);
  first = unknown_before(first);
  ((more = unknown_before(more)), ...);
#endif
}

}  // namespace dnnarray
