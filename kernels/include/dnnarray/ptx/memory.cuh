// Loads and stores that the compiler would make otherwise, and addresses in shared memory.
#pragma once

namespace dnnarray {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// To global or shared memory.
__device__ __forceinline__ void st_v4(void* p, const unsigned (&w)[4]) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
__device__ __forceinline__ void st_v2(void* p, const unsigned (&w)[2]) {
  asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
}

// From global memory, not moved by the compiler.
__device__ __forceinline__ void ld_global_v4_in_place(unsigned (&w)[4], const void* p) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(p)
               : "memory");
}

// From shared memory, read anew each time.
__device__ __forceinline__ void ld_volatile_shared_v4(unsigned (&w)[4], unsigned address) {
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(address));
}

__device__ __forceinline__ unsigned short ld_shared_u16(unsigned address) {
  unsigned short w;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(w) : "r"(address));
  return w;
}
__device__ __forceinline__ unsigned ld_shared_u32(unsigned address) {
  unsigned w;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(address));
  return w;
}
__device__ __forceinline__ unsigned long long ld_shared_u64(unsigned address) {
  unsigned long long w;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(w) : "r"(address));
  return w;
}

__device__ __forceinline__ float ld_shared_f32(unsigned address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ void ld_shared_v2(unsigned (&w)[2], unsigned address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address));
}
__device__ __forceinline__ uint2 ld_shared_v2(unsigned address) {
  unsigned w[2];
  ld_shared_v2(w, address);
  return {w[0], w[1]};
}
__device__ __forceinline__ void ld_shared_v4(unsigned (&w)[4], unsigned address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(address));
}

__device__ __forceinline__ void st_shared_b16(unsigned address, unsigned short w) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(w) : "memory");
}
__device__ __forceinline__ void st_shared_b32(unsigned address, unsigned w) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(w) : "memory");
}
__device__ __forceinline__ void st_shared_f32(unsigned address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ void st_shared_v4(unsigned address, const unsigned (&w)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

// Under a predicate, which costs no branch; nothing is read or written where `there` is 0.
__device__ __forceinline__ void st_shared_v2_if(bool there, unsigned address, unsigned x, unsigned y) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\n@there st.shared.v2.b32 [%0], {%1, %2};\n}" ::"r"(address),
      "r"(x), "r"(y), "r"(static_cast<int>(there))
      : "memory");
}
__device__ __forceinline__ void st_shared_v4_if(int there, unsigned address, const unsigned (&w)[4]) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n@there st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"r"(
          address),
      "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(there)
      : "memory");
}

// From global memory that no kernel writes meanwhile, 0 where `there` is 0. The loads stay in the order in which they
// are asked for: a row of them does not need all addresses at once.
__device__ __forceinline__ void ld_global_nc_b16_if(unsigned short& v, const void* from, unsigned there) {
  v = 0;
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n@there ld.global.nc.b16 %0, [%1];\n}"
               : "+h"(v)
               : "l"(from), "r"(there));
}
__device__ __forceinline__ void ld_global_nc_b32_if(unsigned& v, const void* from, unsigned there) {
  v = 0;
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n@there ld.global.nc.b32 %0, [%1];\n}"
               : "+r"(v)
               : "l"(from), "r"(there));
}
__device__ __forceinline__ uint4 ld_global_nc_v4_if(const void* from, bool there) {
  uint4 v{0, 0, 0, 0};
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n@there ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(there)));
  return v;
}

// The line of memory with this address, to the L2.
__device__ __forceinline__ void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// The number of the thread, such that nothing that was computed from it before has to be kept.
__device__ __forceinline__ unsigned late_thread() {
  unsigned tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}

// Orders ordinary accesses of shared memory before those of TMA and the tensor cores behind the next barrier.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier of some warps of a block, kThreads in all, by a number other than 0.
template <int kThreads>
__device__ __forceinline__ void bar_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// A counter in global memory that blocks order their other accesses by.
__device__ __forceinline__ void red_release_add(unsigned* counter, unsigned n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
__device__ __forceinline__ unsigned ld_acquire(const unsigned* counter) {
  unsigned n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}

// From global memory past the L1, which does not see what other multiprocessors have written.
__device__ __forceinline__ float ld_cg(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 ld_cg_v4(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

}  // namespace dnnarray
