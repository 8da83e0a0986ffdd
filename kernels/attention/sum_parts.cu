// The second stage of a sum: y[i] = sum of parts[p, i] over p, in the order of p, rounded to the type of the result.
//
// Layout:  parts (count, size) in the type of the arithmetic, y dense. A thread owns one element; blocks with y = 1 do
//          the same for the second sum.
// Needs:   launched early.
// Bound:   memory: each part read once.

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/core/overlap.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Part = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long count;
};
#define DNNARRAY_ENTRY sum_parts_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Part* __restrict__ parts, Config::Element* __restrict__ y,
                   const Config::Part* __restrict__ second_parts, Config::Element* __restrict__ second_y,
                   const __grid_constant__ Arguments a) {
  const long long size = a.size, count = a.count;
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= size) return;
  if (blockIdx.y == 1) parts = second_parts, y = second_y;
  parts = after_previous_kernel(parts);
  Config::Part sum = 0;
#pragma unroll 8
  for (long long p = 0; p < count; ++p) sum += parts[p * size + i];
  y[i] = narrow<Config::Element>(arithmetic_t<Config::Element>(sum));
}
