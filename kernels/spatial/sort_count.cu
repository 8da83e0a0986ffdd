// How often each digit of the keys occurs in each part: the first half of a pass of the radix sort; sort_move.cu is the
// second.
//
// Layout:  keys (segments, length), sorted each for itself; a block owns part `blockIdx % parts` of a segment; table
//          (segments, parts, bins).
// Bound:   latency; keys are read once.

#include "spatial/sort.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Key = unsigned;
  static constexpr int kBits = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long length;
  long long parts;
  long long shift;
  long long buckets;
  long long left_out;
};
#define DNNARRAY_ENTRY spatial_sort_count_default
#endif

using namespace dnnarray;
constexpr int kThreads = Config::kThreads, kBins = 1 << Config::kBits;

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const Config::Key* __restrict__ keys, unsigned* __restrict__ table,
                   const __grid_constant__ Arguments a) {
  __shared__ unsigned smem_counts[kBins];
  for (int d = threadIdx.x; d < kBins; d += kThreads) smem_counts[d] = 0;
  __syncthreads();
  const SortPart part(a.length, a.parts);
  const Config::Key* own = keys + part.segment * a.length;
#pragma unroll 4
  for (long long i = part.start + threadIdx.x; i < part.end; i += kThreads) {
    atomicAdd(smem_counts + digit_of<Config::kBits>(bucket_of(own[i], a.buckets, a.left_out), a.shift), 1u);
  }
  __syncthreads();
  unsigned* row = table + static_cast<long long>(blockIdx.x) * kBins;
  for (int d = threadIdx.x; d < kBins; d += kThreads) row[d] = smem_counts[d];
}
