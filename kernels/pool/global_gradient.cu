// Gradient of the mean of whole planes in channels-first memory: every element of a plane gets the same share of its gradient.
//
// Layout:  x is (planes, length). A thread writes kSteps vectors of kWide elements, those of a block beside each other; a vector meets one plane, or two (kTwo).
// Needs:   dx aligned to kWide elements; planes of at least kWide elements, of whole vectors where not kTwo; below 2^30.
// Bound:   memory: dx written once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kTwo = true;
  static constexpr int kWide = 4;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_global_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kWide = Config::kWide, kSteps = Config::kSteps, kThreads = Config::kThreads;

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, T* __restrict__ gmem_dx, long long total, long long length, long long by_length, double share64) {
  begin_ahead();
  const Divider planes(length, by_length);
  const A share = A(share64);
  long long first = (static_cast<long long>(blockIdx.x) * kThreads * kSteps + threadIdx.x) * kWide;
  take_after_previous_kernel(gmem_grad);
#pragma unroll
  for (int step = 0; step < kSteps; ++step, first += kThreads * kWide) {
    if (first >= total) return;
    const Split at = planes(first);
    const int left = planes.divisor - at.rest;  // elements of the first plane
    const T own = narrow<T>(widen(gmem_grad[at.quotient]) * share);
    T next = own;
    if (Config::kTwo && left < kWide && first + left < total) next = narrow<T>(widen(gmem_grad[at.quotient + 1]) * share);
    Vec<T, kWide> dx;
#pragma unroll
    for (int j = 0; j < kWide; ++j) dx.at[j] = !Config::kTwo || j < left ? own : next;
    if (first + kWide <= total) {
      store(gmem_dx + first, dx);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (first + j < total) gmem_dx[first + j] = dx.at[j];
      }
    }
  }
}
