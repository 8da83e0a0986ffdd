// Sorted places of contributions as entries of lists: the source, contributions / `taps`, and the weight.
//
// Layout:  places and weights (segments, length); a thread owns an entry.
// Bound:   latency of the scattered weights, which lie in L2.

#include "dnnarray/lists.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Arithmetic = float;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY list_entries_default
#endif

using namespace dnnarray;
using A = Config::Arithmetic;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const unsigned* __restrict__ places, const A* __restrict__ weights, Entry<A>* __restrict__ entries, long long segments,
                   long long length, long long taps) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= segments * length) return;
  const unsigned place = places[i];
  entries[i] = {weights[i / length * length + place], place / static_cast<unsigned>(taps)};
}
