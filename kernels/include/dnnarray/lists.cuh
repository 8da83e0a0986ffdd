// Lists of weighted sources, one list for each target: what sums of scattered contributions become once they are sorted by target.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

// One contribution: the source element and its weight.
template <typename A>
struct alignas(2 * sizeof(A)) Entry {
  A weight;
  unsigned source;
};

// Calls body(source, weight) for the entries [first, last) in order, kAhead of them fetched together.
template <int kAhead, typename A, typename Body>
__device__ __forceinline__ void for_each_entry(const Entry<A>* entries, unsigned first, unsigned last, Body body) {
  for (unsigned k = first; k < last; k += kAhead) {
    Entry<A> found[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) found[u] = entries[k + u < last ? k + u : last - 1];
    body(found, last - k);
  }
}

}  // namespace dnnarray
