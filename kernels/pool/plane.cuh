// Reductions of whole planes in parts: what a thread has found of a plane, and how two parts become one.
#pragma once

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "pool/window.cuh"

namespace dnnarray {

// A vector from memory to shared memory, in the background where that is possible; `wait_for_copies` waits for all of a
// thread's own ones.
template <typename T, int N>
__device__ __forceinline__ void copy_vector(T* smem, const T* gmem) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) * N == 16) {
    cp_async_cg(smem, gmem);
    return;
  }
#endif
  store(smem, load<T, N>(gmem));
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  cp_async_wait_all();
#endif
}

// A sum, or a maximum and, where that is asked for, its place.
template <typename A>
struct Partial {
  A value;
  int place;
};

constexpr int kNowhere = 0x7fffffff;

// The sum of both; or the larger one: the first of equal maxima, the last NaN, whichever stands first in memory.
template <bool kSum, bool kPlaces, typename A>
__device__ __forceinline__ Partial<A> combined(const Partial<A>& a, const Partial<A>& b) {
  if constexpr (kSum) {
    return {static_cast<A>(a.value + b.value), 0};
  } else if constexpr (kPlaces) {
    bool ahead = b.value > a.value || (b.value == a.value && b.place < a.place);
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a || nan_b) ahead = nan_b && (!nan_a || b.place > a.place);
    return ahead ? b : a;
  } else {
    return {larger(a.value, b.value), 0};
  }
}

// The combination of the parts of each group of kLanes neighbouring lanes; every lane gets it. All 32 lanes of the warp
// must come.
template <int kLanes, bool kSum, bool kPlaces, typename A>
__device__ __forceinline__ Partial<A> combine_lanes(Partial<A> own) {
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    Partial<A> other{__shfl_xor_sync(kAllLanes, own.value, lane), 0};
    if constexpr (kPlaces) other.place = __shfl_xor_sync(kAllLanes, own.place, lane);
    own = combined<kSum, kPlaces>(own, other);
  }
  return own;
}

}  // namespace dnnarray
