// A kernel that begins while the one before it ends (a plan's `early` or `ahead`; from sm_90 on): launched as soon as every block of that one has
// called `let_next_kernel_begin`, it may read at once what that one did not write, and waits where it needs the rest.
#pragma once

namespace dnnarray {

// Has a meaning for the launch behind this one only where that overlaps.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What a small launch is compiled with (`ahead_if_small`).
#ifdef DNNARRAY_AHEAD
constexpr bool kBeginsAhead = true;
#else
constexpr bool kBeginsAhead = false;
#endif

__device__ __forceinline__ void begin_ahead() {
  if constexpr (kBeginsAhead) let_next_kernel_begin();
}

// The pointer, through which the compiler can have read nothing before, whatever `__restrict__` said of it. It is known to lie in global memory.
template <typename P>
__device__ __forceinline__ P* unknown_before(P* p) {
  auto at = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(at)::"memory");
  return static_cast<P*>(__cvta_global_to_generic(at));
}

// Waits until the kernel before has ended; gives the pointer to something that it wrote, as the only way to it. Some thread of a kernel that is
// launched early must come here, or the kernel behind it does not wait for the one before it either.
template <typename P>
__device__ __forceinline__ P* after_previous_kernel(P* p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  p = unknown_before(p);
#endif
  return p;
}

// The same for all that a kernel which begins ahead reads, in place, and with one wait. The first is never null: to ask that keeps the
// assembler from putting off until after the wait what it takes to find the address.
template <typename P, typename... More>
__device__ __forceinline__ void take_after_previous_kernel(P& first, More&... more) {
#if __CUDA_ARCH__ >= 900 && defined(DNNARRAY_AHEAD)
  asm volatile("{\n.reg .pred known;\nsetp.ne.u64 known, %0, 0;\n@known griddepcontrol.wait;\n}" ::"l"(first) : "memory");
  first = unknown_before(first);
  ((more = unknown_before(more)), ...);
#endif
}

}  // namespace dnnarray
