// Stages of shared memory that producers and consumers use by turns.
#pragma once

namespace dnnarray {

// The stage of a ring that a producer or a consumer is at, and the parity of its barriers.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace dnnarray
