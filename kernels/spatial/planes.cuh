// Some channels of an image in shared memory, those of an element side by side, for look-ups that fetch them all at
// once.
#pragma once

#include "dnnarray/core/vec.cuh"

namespace dnnarray {

// Copies kPlanes planes of `size` elements, `step` apart in memory; behind the last element stands a zero. Planes from
// `here` on are zeros.
template <int kPlanes, int kVector, int kThreads, typename T>
__device__ __forceinline__ void interleave(Vec<T, kPlanes>* planes, const T* source, long long size, long long step,
                                           int here) {
  T* flat = reinterpret_cast<T*>(planes);
#pragma unroll 16  // as many loads are on their way
  for (long long i = threadIdx.x * kVector; i < size; i += kThreads * kVector) {
    Vec<T, kVector> part[kPlanes];
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      if (c < here) {
        part[c] = load<T, kVector>(source + c * step + i);
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) part[c].at[v] = narrow<T>(0);
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      Vec<T, kPlanes> element;
#pragma unroll
      for (int c = 0; c < kPlanes; ++c) element.at[c] = part[c].at[v];
      planes[i + v] = element;
    }
  }
  if (threadIdx.x < kPlanes) flat[size * kPlanes + threadIdx.x] = narrow<T>(0);
}

}  // namespace dnnarray
