// Numbers as two bfloat16 parts that add up to them within 2^-17: y[r, 0, j] + y[r, 1, j] = x[r, j], or = x[r, j] +
// x[r, low + j] where x comes in two parts itself.
//
// Layout:  x has rows `row` elements apart, y is dense (rows, 2, columns); a thread owns kVector columns of a row.
// Needs:   pointers, columns, row and low aligned to kVector elements.
// Bound:   memory: x read once, y written once.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long columns;
  long long row;
  long long low;
};
#define DNNARRAY_ENTRY rnn_split_default
#endif

using namespace dnnarray;
using S = Config::Source;
constexpr int V = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const S* __restrict__ x, bfloat16_t* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * V, r = i / a.columns,
                  j = i - r * a.columns;
  if (r >= a.rows) return;
  const Vec<S, V> first = load<S, V>(x + r * a.row + j);
  Vec<S, V> second = {};
  if (a.low) second = load<S, V>(x + r * a.row + a.low + j);
  Vec<bfloat16_t, V> high, rest;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float value = widen(first.at[v]) + (a.low ? widen(second.at[v]) : 0.0f);
    high.at[v] = narrow<bfloat16_t>(value);
    rest.at[v] = narrow<bfloat16_t>(value - widen(high.at[v]));
  }
  store(y + 2 * r * a.columns + j, high);
  store(y + (2 * r + 1) * a.columns + j, rest);
}
