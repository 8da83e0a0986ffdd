// What all threads of a block need now and then, in shared memory.
#pragma once

namespace dnnarray {

// What stays in shared memory, so that it takes no registers while sums are made.
template <typename Fixed>
__device__ __forceinline__ const Fixed& keep(const Fixed& fixed) {
  alignas(16) __shared__ unsigned char smem_fixed[sizeof(Fixed)];
  if (threadIdx.x == 0) *reinterpret_cast<Fixed*>(smem_fixed) = fixed;
  __syncthreads();
  return *reinterpret_cast<const Fixed*>(smem_fixed);
}

}  // namespace dnnarray
