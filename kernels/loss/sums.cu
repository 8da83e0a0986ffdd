// Sums in a fixed order, of numbers or of the weights of labels: partial[b] = sum of the elements of block b's part.
//
// Layout:  flat. Each block owns `part` neighbouring elements, a thread those kThreads apart within.
// Bound:   memory.

#include "dnnarray/core/overlap.cuh"
#include "loss/scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Source = long long;
  static constexpr bool kLabels = true;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long size;
  long long part;
  long long classes;
  long long ignore;
};
#define DNNARRAY_ENTRY loss_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Source* __restrict__ source, const T* __restrict__ weight, A* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  __shared__ A shared[Config::kThreads / kWarp];
  let_next_kernel_begin();
  if constexpr (!Config::kLabels) source = after_previous_kernel(source);
  const long long start = blockIdx.x * a.part, end = start + a.part < a.size ? start + a.part : a.size;
  A sum = A(0);
#pragma unroll 8
  for (long long i = start + threadIdx.x; i < end; i += Config::kThreads) {
    if constexpr (Config::kLabels) {
      sum += Label(source[i], a.classes, a.ignore).weight(weight);
    } else {
      sum += source[i];
    }
  }
  sum = block_reduce<Config::kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
