// What the backward pass of attention subtracts in each row: delta = grad_y . y - grad_lse, 0 past the end of a
// sequence.
//
// Layout:  rows (batch, head, query), any strides; packed sequences as one batch item. A warp owns a row; its lanes
//          take kVector neighbours.
// Needs:   kVector features side by side in aligned rows (1 where they are not).
// Bound:   memory: grad_y and y read once.

#include "attention/rule.cuh"
#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long queries;
  long long heads;
  long long width;
  const void* q_lengths;
  long long q_kind;
  long long lse_batch;
  long long lse_head;
  dnnarray::Strides grad_strides;
  dnnarray::Strides y_strides;
};
#define DNNARRAY_ENTRY attention_delta_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Y = Config::Result;  // of the forward, half or not
using A = arithmetic_t<T>;
constexpr int V = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Y* __restrict__ y, const A* __restrict__ grad_lse,
                   A* __restrict__ delta, const __grid_constant__ Arguments a) {
  const long long rows = a.rows, queries = a.queries, heads = a.heads, width = a.width, q_kind = a.q_kind,
                  lse_batch = a.lse_batch, lse_head = a.lse_head;
  const void* q_lengths = a.q_lengths;
  const Strides grad_strides = a.grad_strides, y_strides = a.y_strides;
  const long long row = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const Divided by_query = divide_index(row, queries), by_head = divide_index(by_query.quotient, heads);
  const long long i = by_query.remainder, h = by_head.remainder, b = by_head.quotient;
  const bool live = !q_lengths || i < integer_at(q_lengths, q_kind, b);
  A sum = 0;
  if (grad && live) {
    const T* of_g = grad + grad_strides.at(b, h, i);
    const Y* of_y = y + y_strides.at(b, h, i);
    for (long long d = lane * V; d < width; d += kWarp * V) {
      const Vec<T, V> reg_g = load<T, V>(of_g + d * grad_strides.column);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += widen(reg_g.at[j]) * A(widen(of_y[(d + j) * y_strides.column]));
    }
  }
  sum = warp_sum(sum);
  const long long at = b * lse_batch + h * lse_head + i;
  if (grad_lse && live) sum -= grad_lse[at];
  if (lane == 0) delta[at] = sum;
}
