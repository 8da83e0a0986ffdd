// Where the entries of each bucket start among sorted keys: starts[segment, r] for r from 0 to `buckets`, where they all end.
//
// Layout:  keys (segments, length), sorted; a thread owns a bucket and searches.
// Bound:   latency.

#include "dnnarray/sort.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY sort_starts_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const unsigned* __restrict__ keys, unsigned* __restrict__ starts, long long segments, long long length, long long buckets) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= segments * (buckets + 1)) return;
  const long long segment = i / (buckets + 1), bucket = i - segment * (buckets + 1);
  starts[i] = static_cast<unsigned>(lower_bound(keys + segment * length, length, static_cast<unsigned>(bucket)));
}
