// The gradient of the sinks of attention: grad_sink[h] = -sum over batch and queries of exp(sink[h] - lse) delta.
//
// Layout:  lse and delta (batch, head, query) by strides; packed sequences as one batch item. A block owns a head.
// Bound:   memory: lse and delta read once. A thread adds up every kThreads-th row, then the block, always in the same
//          order.

#include "attention/slopes.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Sink = float;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long rows;
  long long queries;
  long long lse_batch;
  long long lse_head;
};
#define DNNARRAY_ENTRY attention_sink_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Sink* __restrict__ sinks, const A* __restrict__ lse, const A* __restrict__ delta,
                   Config::Sink* __restrict__ out, const __grid_constant__ Arguments a) {
  const long long rows = a.rows, queries = a.queries, lse_batch = a.lse_batch, lse_head = a.lse_head;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  const long long h = blockIdx.x;
  const A sink = A(widen(sinks[h]));
  A sum = 0;
  for (long long row = threadIdx.x; row < rows; row += Config::kThreads) {
    const Divided place = divide_index(row, queries);
    const long long at = place.quotient * lse_batch + h * lse_head + place.remainder;
    sum += Precise::exp(sink - usable_lse(lse[at])) * delta[at];
  }
  sum = block_reduce<Config::kThreads>(sum, Sum(), reinterpret_cast<A*>(dynamic_shared));
  if (threadIdx.x == 0) out[h] = narrow<Config::Sink>(arithmetic_t<Config::Sink>(-sum));
}
