// What the backward pass of attention subtracts in each row: delta = grad_y . y - grad_lse, 0 past the end of a sequence.
//
// Layout:  rows (batch, head, query), any strides; packed sequences as one batch item. A warp owns a row; its lanes take kVector neighbours.
// Needs:   kVector features side by side in aligned rows (1 where they are not).
// Bound:   memory: grad_y and y read once.

#include "dnnarray/attention.cuh"
#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY attention_delta_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Y = Config::Result;  // of the forward, half or not
using A = arithmetic_t<T>;
constexpr int V = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ g, const Y* __restrict__ y, const A* __restrict__ grad_lse, A* __restrict__ delta, long long rows,
                   long long queries, long long heads, long long width, const void* q_lengths, long long q_kind, long long lse_batch,
                   long long lse_head, DNNARRAY_STRIDES(g), DNNARRAY_STRIDES(y)) {
  const long long row = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const Divided by_query = divide_index(row, queries), by_head = divide_index(by_query.quotient, heads);
  const long long i = by_query.remainder, h = by_head.remainder, b = by_head.quotient;
  const bool live = !q_lengths || i < integer_at(q_lengths, q_kind, b);
  A sum = 0;
  if (g && live) {
    const T* of_g = g + b * g_batch + h * g_head + i * g_row;
    const Y* of_y = y + b * y_batch + h * y_head + i * y_row;
    for (long long d = lane * V; d < width; d += kWarp * V) {
      const Vec<T, V> reg_g = load<T, V>(of_g + d * g_column);
#pragma unroll
      for (int j = 0; j < V; ++j) sum += widen(reg_g.at[j]) * A(widen(of_y[(d + j) * y_column]));
    }
  }
  sum = warp_sum(sum);
  const long long at = b * lse_batch + h * lse_head + i;
  if (grad_lse && live) sum -= grad_lse[at];
  if (lane == 0) delta[at] = sum;
}
