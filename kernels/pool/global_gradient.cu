// Gradient of the mean of whole planes in channels-first memory: every element of a plane gets the same share of its
// gradient.
//
// Layout:  x is (planes, length). A thread writes kSteps vectors of kWide elements, those of a block beside each other;
//          a vector meets one plane, or two (kTwo).
// Needs:   dx aligned to kWide elements; planes of at least kWide elements, of whole vectors where not kTwo; below
//          2^30.
// Bound:   memory: dx written once.

#include "dnnarray/core/overlap.cuh"
#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kTwo = true;
  static constexpr int kWide = 4;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider length;
  double share;
};
#define DNNARRAY_ENTRY pool_global_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kWide = Config::kWide, kSteps = Config::kSteps, kThreads = Config::kThreads;

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  begin_ahead();
  const Divider planes = a.length;
  const long long total = a.total;
  const A share = A(a.share);
  long long first = (static_cast<long long>(blockIdx.x) * kThreads * kSteps + threadIdx.x) * kWide;
  take_after_previous_kernel(grad);
#pragma unroll
  for (int step = 0; step < kSteps; ++step, first += kThreads * kWide) {
    if (first >= total) return;
    const Split at = planes(first);
    const int left = planes.divisor - at.rest;  // elements of the first plane
    const T own = narrow<T>(widen(grad[at.quotient]) * share);
    T next = own;
    if (Config::kTwo && left < kWide && first + left < total) next = narrow<T>(widen(grad[at.quotient + 1]) * share);
    Vec<T, kWide> reg_dx;
#pragma unroll
    for (int j = 0; j < kWide; ++j) reg_dx.at[j] = !Config::kTwo || j < left ? own : next;
    if (first + kWide <= total) {
      store(dx + first, reg_dx);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (first + j < total) dx[first + j] = reg_dx.at[j];
      }
    }
  }
}
