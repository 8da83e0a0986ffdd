// out[c] = sum over s of partial[c, s]: the second stage of sums, whose first stage leaves `parts` partial sums for
// each element of the result.
//
// Layout:  `partial` is size x parts, dense. kLanes neighbouring threads own one element.
// Needs:   kLanes is a power of two up to 32, or the whole block; the launch is an early one.
// Bound:   Latency: the array is small beside the one it was made from.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const dnnarray::arithmetic_t<Config::Element>* partial;
  Config::Element* out;
  long long size;
  long long parts;
};
#define DNNARRAY_ENTRY partial_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const long long size = a.size, parts = a.parts;
  __shared__ A shared[Config::kThreads / kWarp];
  constexpr int kPerBlock = Config::kThreads / Config::kLanes;
  const int lane = threadIdx.x % Config::kLanes;
  const long long c = static_cast<long long>(blockIdx.x) * kPerBlock + threadIdx.x / Config::kLanes;
  A sum = 0;
  const A* const partial = after_previous_kernel(a.partial);
  if (c < size) {
#pragma unroll 4
    for (long long s = lane; s < parts; s += Config::kLanes) sum += partial[c * parts + s];
  }
  if constexpr (Config::kLanes <= kWarp) {
    sum = warp_sum<Config::kLanes>(sum);
  } else {
    sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  }
  if (lane == 0 && c < size) a.out[c] = narrow<T>(sum);
}
