// Lists of weighted sources, one list for each target: what sums of scattered contributions become once they are sorted
// by target.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

// One contribution: the source element and its weight.
template <typename A>
struct alignas(2 * sizeof(A)) Entry {
  A weight;
  unsigned source;
};

// Calls body(entries, how many of them count) for the entries [first, last) in order, kAhead of them fetched together.
template <int kAhead, typename A, typename Body>
__device__ __forceinline__ void for_each_entry(const Entry<A>* entries, unsigned first, unsigned last, Body body) {
  for (unsigned k = first; k < last; k += kAhead) {
    Entry<A> found[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) found[u] = entries[k + u < last ? k + u : last - 1];
    body(found, last - k);
  }
}

// Sliced lists: the lists of the 32 targets of a warp take turns, the first entries of all, then the second entries of
// those that have one, and so on, so that the warp reads neighbours. `at` is where the slice stands.
struct Slice {
  unsigned at;

  // Where entry k of this lane's list of `count` entries stands; the slice moves on to the next entries. All lanes come
  // with the same k.
  __device__ __forceinline__ unsigned take(unsigned k, unsigned count) {
    const unsigned there = __ballot_sync(0xffffffffu, k < count);
    const unsigned own = at + __popc(there & ((1u << (threadIdx.x % 32)) - 1));
    at += __popc(there);
    return own;
  }
};

// for_each_entry over sliced lists. `first` and `last` are of the list as if it were not sliced; lane 0 has the first
// list of the slice.
template <int kAhead, typename A, typename Body>
__device__ __forceinline__ void for_each_sliced(const Entry<A>* entries, unsigned first, unsigned last, Body body) {
  const unsigned count = last - first;
  Slice slice{__shfl_sync(0xffffffffu, first, 0)};
  for (unsigned k = 0; __any_sync(0xffffffffu, k < count); k += kAhead) {
    Entry<A> found[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const unsigned at = slice.take(k + u, count);
      if (k + u < count) {
        found[u] = entries[at];
      } else {
        found[u] = {A(0), 0u};
      }
    }
    if (k < count) body(found, count - k);
  }
}

}  // namespace dnnarray
