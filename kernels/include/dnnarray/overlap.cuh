// A kernel that begins while the one before it ends (a plan's `early`; from sm_90 on): launched as soon as every block of that one has called
// `let_next_kernel_begin`, it may read at once what that one did not write, and waits where it needs the rest.
#pragma once

namespace dnnarray {

// Has a meaning for the launch behind this one only where that is `early`.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended; gives the pointer to something that it wrote, through which the compiler can have read nothing
// before, whatever `__restrict__` said of it. Some thread of a kernel that is launched early must come here, or the kernel behind it does not
// wait for the one before it either.
template <typename P>
__device__ __forceinline__ P* after_previous_kernel(P* p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("" : "+l"(p)::"memory");
#endif
  return p;
}

}  // namespace dnnarray
