// The largest finite |g|, as the bits of a double, which order as the numbers do: the scale of scatter.cuh's sums.
//
// Layout:  flat; a thread takes elements kThreads * blocks apart. *largest is 0 before. A maximum has no order.
// Bound:   memory.

#include "spatial/scatter.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kThreads = 256;
};
struct Arguments {
  unsigned long long* largest;
  long long size;
};
#define DNNARRAY_ENTRY spatial_scatter_largest_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const __grid_constant__ Arguments a) {
  __shared__ A shared[Config::kThreads / kWarp];
  A found = A(0);
  const long long step = static_cast<long long>(gridDim.x) * Config::kThreads;
#pragma unroll 4
  for (long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x; i < a.size; i += step) {
    const A value = widen(grad[i]), size = value < A(0) ? -value : value;
    if (size > found && size < infinity(A(0))) found = size;
  }
  found = block_reduce<Config::kThreads>(found, Max(), shared);
  if (threadIdx.x == 0) atomicMax(a.largest, static_cast<unsigned long long>(__double_as_longlong(found)));
}
