// Loads and stores that the compiler would make otherwise, and addresses in shared memory.
#pragma once

namespace dnnarray {

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// To global or shared memory.
__device__ __forceinline__ void st_v4(void* p, const unsigned (&w)[4]) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
__device__ __forceinline__ void st_v2(void* p, const unsigned (&w)[2]) {
  asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
}

// From shared memory, read anew each time.
__device__ __forceinline__ void ld_volatile_shared_v4(unsigned (&w)[4], unsigned address) {
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address));
}

}  // namespace dnnarray
