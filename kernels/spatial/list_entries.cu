// Sorted places of contributions as entries of lists: the source, contributions / `taps`, and the weight. kSliced: the
// entries of 32 targets take turns (lists.cuh).
//
// Layout:  places and weights (segments, length), starts (segments, targets + 1). A thread owns an entry; with kSliced
//          a target, of which each segment has `padded`, a multiple of 32.
// Bound:   latency of the scattered weights, which lie in L2.

#include "spatial/lists.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Arithmetic = float;
  static constexpr bool kSliced = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long segments;
  long long length;
  long long targets;
  long long padded;
  long long taps;
};
#define DNNARRAY_ENTRY spatial_list_entries_default
#endif

using namespace dnnarray;
using A = Config::Arithmetic;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const unsigned* __restrict__ places, const A* __restrict__ weights,
                   const unsigned* __restrict__ starts, Entry<A>* __restrict__ entries,
                   const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const long long own = Config::kSliced ? a.padded : a.length, segment = i / own;
  if (segment >= a.segments) return;  // whole warps: `padded` is a multiple of 32
  const unsigned* place = places + segment * a.length;
  const A* weight = weights + segment * a.length;
  const unsigned by = static_cast<unsigned>(a.taps);
  if constexpr (Config::kSliced) {
    const long long target = i - segment * a.padded;
    const unsigned* start = starts + segment * (a.targets + 1);
    const unsigned first = start[target < a.targets ? target : a.targets],
                   last = start[target + 1 < a.targets ? target + 1 : a.targets];
    Slice slice{__shfl_sync(0xffffffffu, first, 0)};
    for (unsigned k = 0; __any_sync(0xffffffffu, k < last - first); ++k) {
      const unsigned at = slice.take(k, last - first);
      if (k < last - first) entries[segment * a.length + at] = {weight[place[first + k]], place[first + k] / by};
    }
  } else {
    const unsigned found = place[i - segment * a.length];
    entries[i] = {weight[found], found / by};
  }
}
