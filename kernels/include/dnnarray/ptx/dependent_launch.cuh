// Programmatic dependent launch (from sm_90 on): a kernel that begins while the one before it in the stream ends.
#pragma once

namespace dnnarray {

__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same where a pointer that is never null has been worked out: to ask for it keeps the assembler from putting off
// until after the wait what it takes to find the address.
__device__ __forceinline__ void griddepcontrol_wait_having(const void* never_null) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred known;\nsetp.ne.u64 known, %0, 0;\n@known griddepcontrol.wait;\n}" ::"l"(never_null)
               : "memory");
#endif
}

// The pointer, through which the compiler can have read nothing before, whatever `__restrict__` said of it. It is known
// to lie in global memory.
template <typename P>
__device__ __forceinline__ P* unknown_before(P* p) {
  auto at = __cvta_generic_to_global(p);
  asm volatile("" : "+l"(at)::"memory");
  return static_cast<P*>(__cvta_global_to_generic(at));
}

}  // namespace dnnarray
