// Gradient of unpooling in a plain memory order: dx[n, c, i] = grad[n, c, indices[n, c, i]].
//
// Layout:  arrays are (outer, place, channels), channels 1 in channels-first; a thread owns kFlight elements of dx.
//          Where an index is no position the gradient is 0.
// Needs:   planes of grad below 2^31 elements.
// Bound:   memory: indices and what they name of grad read once, dx written once.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kFlight = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider channels;
  dnnarray::Divider places;
  long long size;
};
#define DNNARRAY_ENTRY pool_unpool_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Index = Config::Index;
constexpr int kThreads = Config::kThreads, kFlight = Config::kFlight;

// `total` counts the elements of dx; `places` are those of a plane of dx, `size` those of a plane of grad.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Index* __restrict__ indices, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const Divider by_channel = a.channels, by_place = a.places;
  const long long total = a.total, size = a.size;
  const long long first = static_cast<long long>(blockIdx.x) * kThreads * kFlight + threadIdx.x;
  long long named[kFlight];
  T results[kFlight] = {};
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
    named[f] = first + f * kThreads < total ? static_cast<long long>(indices[first + f * kThreads]) : -1;
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
    if (named[f] < 0 || named[f] >= size) continue;
    const Split channel = by_channel(first + f * kThreads), place = by_place(channel.quotient);
    results[f] = grad[(place.quotient * size + named[f]) * by_channel.divisor + channel.rest];
  }
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
    if (first + f * kThreads < total) dx[first + f * kThreads] = results[f];
  }
}
