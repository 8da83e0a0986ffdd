// Where the entries of each bucket start among sorted keys: starts[segment, r] for r from 0 to `buckets`, where they
// all end.
//
// Layout:  keys (segments, length), sorted; a thread owns a bucket and searches.
// Bound:   latency.

#include "spatial/sort.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long segments;
  long long length;
  long long buckets;
};
#define DNNARRAY_ENTRY spatial_sort_starts_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const unsigned* __restrict__ keys, unsigned* __restrict__ starts,
                   const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.segments * (a.buckets + 1)) return;
  const long long segment = i / (a.buckets + 1), bucket = i - segment * (a.buckets + 1);
  starts[i] = static_cast<unsigned>(lower_bound(keys + segment * a.length, a.length, static_cast<unsigned>(bucket)));
}
