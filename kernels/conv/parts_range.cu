// The largest finite magnitude of an array, in parts that parts_image.cu puts together: found[block] = its bits, and
// kStrange where a NaN or an infinity was seen (parts.cuh).
//
// Layout:  x dense, n elements; a thread reads vectors of kVector, a grid apart.
// Needs:   x aligned to a vector.
// Bound:   memory: x read once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "conv/parts.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kVector = 4;
  static constexpr int kThreads = 512;
};
#define DNNARRAY_ENTRY parts_range_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads, kAhead = 4;

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    DNNARRAY_ENTRY(const float* __restrict__ x, unsigned* __restrict__ found, long long n) {
  let_next_kernel_begin();
  x = after_previous_kernel(x);
  __shared__ unsigned smem_found[kThreads / kWarp];
  const long long vectors = n / kVector, step = static_cast<long long>(gridDim.x) * kThreads;
  const long long own = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned largest = 0;
  for (long long i = own; i < vectors; i += kAhead * step) {
    Vec<float, kVector> v[kAhead] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (i + a * step < vectors) v[a] = load<float, kVector>(x + (i + a * step) * kVector);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int e = 0; e < kVector; ++e) largest = merged(largest, seen(v[a].at[e]));
  }
  if (own < n - vectors * kVector) largest = merged(largest, seen(x[vectors * kVector + own]));
  largest = block_reduce<kThreads>(largest, Merge(), smem_found);
  if (threadIdx.x == 0) found[blockIdx.x] = largest;
}
