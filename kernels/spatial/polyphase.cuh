// Resampling along one axis by a whole factor: the weight of a tap depends on its distance alone, so that the compiler
// knows them all.
#pragma once

#include "spatial/resize.cuh"

namespace dnnarray {

// One axis, seen by a thread with kCount neighbours of the side that has fewer elements; both sides are counted from
// its first element on. kUp: there are kFactor (1 or even) targets for each source element, else as many source
// elements for each target. kTransposed: targets are read, sources are written, for the gradient. What lies beyond an
// end is the element at that end; transposed, that one gets the share of those beyond.
template <int kMode, bool kUp, bool kTransposed, int kFactor, int kCount>
struct Polyphase {
  static constexpr bool kExpand = kUp != kTransposed;
  static constexpr int kOwn = kExpand ? kCount : kCount * kFactor;  // elements read
  static constexpr int kOut = kExpand ? kCount * kFactor : kCount;
  // A target reads sources that are less than kReach away.
  static constexpr int kReach = kFactor == 1 ? 0 : kMode == kResizeLinear ? 1 : kMode == kResizeCubic ? 2 : 0;
  static constexpr int kOfSources = kUp ? kReach : kReach > kFactor / 2 ? kReach - kFactor / 2 : 0;
  static constexpr int kOfTargets = !kUp ? kReach > kFactor / 2 : kReach > 0 ? kReach * kFactor - kFactor / 2 : 0;
  static constexpr int kHalo = kTransposed ? kOfTargets : kOfSources;  // elements read on each side of the own ones
  static constexpr int kWindow = kOwn + 2 * kHalo;

  // The weight of element i of the window in result o.
  static __device__ __forceinline__ double weight(int o, int i) {
    return kTransposed ? tap(i - kHalo, o) : tap(o, i - kHalo);
  }
  // That of element i in the results that would lie before the first one, and behind the last. Elements that are not
  // there at that end have none.
  static __device__ __forceinline__ double before(int i) {
    if (i < kHalo) return 0.0;
    double sum = 0.0;
#pragma unroll
    for (int k = 1; k <= kReach; ++k) sum += tap(i - kHalo, -k);
    return sum;
  }
  static __device__ __forceinline__ double behind(int i) {
    if (i >= kHalo + kOwn) return 0.0;
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < kReach; ++k) sum += tap(i - kHalo, kOut + k);
    return sum;
  }

 private:
  static __device__ __forceinline__ double tap(int target, int source) {
    if (kFactor == 1) return target == source ? 1.0 : 0.0;
    if (kReach == 0 && kUp) return target >= source * kFactor && target < (source + 1) * kFactor ? 1.0 : 0.0;
    if (kMode == kResizeNearest) return source == target * kFactor ? 1.0 : 0.0;
    if (kMode == kResizeNearestExact) return source == target * kFactor + kFactor / 2 ? 1.0 : 0.0;
    if (kMode == kResizeArea)
      return source >= target * kFactor && source < (target + 1) * kFactor ? 1.0 / kFactor : 0.0;
    const double place = kUp ? (target + 0.5) / kFactor - 0.5 : (target + 0.5) * kFactor - 0.5;
    const double distance = place < source ? source - place : place - source;
    if (kMode == kResizeLinear) return distance < 1.0 ? 1.0 - distance : 0.0;
    return distance < 2.0 ? cubic_weight(distance, -0.75) : 0.0;
  }
};

}  // namespace dnnarray
