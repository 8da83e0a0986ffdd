// out[c] = sum over s of partial[c, s]: the second stage of the sums over all but the channel.
//
// Layout:  partial is channels x splits, dense. kLanes neighbouring threads own one channel.
// Needs:   kLanes a power of two up to 32, or the whole block; launched early.
// Bound:   latency; the array is small beside what it was made from.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY activation_partial_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const A* __restrict__ partial, T* __restrict__ out, long long channels, long long splits) {
  __shared__ A shared[Config::kThreads / kWarp];
  constexpr int kPerBlock = Config::kThreads / Config::kLanes;
  const int lane = threadIdx.x % Config::kLanes;
  const long long c = static_cast<long long>(blockIdx.x) * kPerBlock + threadIdx.x / Config::kLanes;
  A sum = 0;
  partial = after_previous_kernel(partial);
  if (c < channels) {
#pragma unroll 4
    for (long long s = lane; s < splits; s += Config::kLanes) sum += partial[c * splits + s];
  }
  if constexpr (Config::kLanes <= kWarp) {
    sum = warp_sum<Config::kLanes>(sum);
  } else {
    sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  }
  if (lane == 0 && c < channels) out[c] = narrow<T>(sum);
}
