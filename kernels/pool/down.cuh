// Columns of a window reduced down the rows of x, in channels-first memory: sums, or maxima with the rows in which they
// stand.
#pragma once

#include "pool/plane.cuh"

namespace dnnarray {

// C is the Config of a kernel. kReduction is as in direct.cu; a thread has kWide neighbouring columns, and kFlight
// loads under way at once.
template <typename C>
struct Down {
  using T = typename C::Element;
  using N = Number<T>;
  using A = typename N::type;
  using P = Partial<A>;
  static constexpr int kWide = C::kWide, kFlight = C::kFlight;
  static constexpr bool kPlaces = C::kReduction == 1 || C::kReduction == 2, kSum = C::kReduction == 3;

  static __device__ __forceinline__ P nothing() { return {kSum || C::kMagnitude ? A(0) : N::lowest(), kNowhere}; }

  // What a column has found so far, and the next element down, number `place`.
  static __device__ __forceinline__ void take(P& own, A x, int place) {
    if constexpr (kPlaces) {
      if (!wins(x, own.value) && own.place != kNowhere) return;
      own = {x, place};
    } else {
      own = combined<kSum, false>(own, P{x, 0});
    }
  }

  // The columns of a row of windows, each over the rows [first, last) of `taps`.
  static __device__ __forceinline__ void reduce(P (&own)[kWide], const T* x, const Taps& taps, long long step) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) own[j] = nothing();
    for (int first = taps.first; first < taps.last; first += kFlight) {
      Vec<T, kWide> reg_x[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (first + f < taps.last) reg_x[f] = load<T, kWide>(x + (first + f) * step);
      }
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (first + f >= taps.last) break;
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          const A v = N::widened(reg_x[f].at[j]);
          take(own[j], C::kMagnitude ? magnitude(v) : v, first + f);
        }
      }
    }
  }
};

}  // namespace dnnarray
