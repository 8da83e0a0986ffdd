// The shares of mma_decode.cu as one result: with m_s the lse of share s in powers of two, lse = log2(2^sink + sum_s
// 2^m_s) and y = sum_s 2^(m_s - lse) y_s, always in the same order.
//
// Layout:  shares (part, batch, key head, row, D_v), their lse without the last axis; y and lse by strides. A warp owns
//          a row, a lane features.
// Bound:   memory: each share read once.

#include "attention/rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long splits;
  long long value_width;
  long long lse_batch;
  long long lse_head;
  dnnarray::Strides y_strides;
  dnnarray::Rule rule;
};
#define DNNARRAY_ENTRY attention_mma_combine_default
#endif

using namespace dnnarray;
using T = Config::Element;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ shares, const float* __restrict__ lse_shares, T* __restrict__ y,
                   float* __restrict__ lse, const __grid_constant__ Arguments a) {
  const long long rows = a.rows, splits = a.splits, value_width = a.value_width, lse_batch = a.lse_batch,
                  lse_head = a.lse_head;
  const Strides y_strides = a.y_strides;
  const long long row = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const Rule rule = a.rule;
  const Divided by_head = divide_index(row, rule.group), by_query = divide_index(by_head.quotient, rule.queries);
  const Divided by_key_head = divide_index(by_query.quotient, rule.heads / rule.group);
  const long long b = by_key_head.quotient, i = by_query.remainder;
  const long long h = by_key_head.remainder * rule.group + by_head.remainder;
  const Sequence sequence(rule, b);
  if (i >= sequence.queries) return;
  const bool has_sink = rule.sinks && i < sequence.q_end;
  float highest = has_sink ? parameter_at<T>(rule.sinks, rule.sinks_wide, h) * kLog2e : -infinity(0.0f);
  const float sink = highest;
  for (long long s = 0; s < splits; ++s) highest = fmaxf(highest, lse_shares[s * rows + row]);
  const float ground = highest == -infinity(0.0f) ? 0.0f : highest;
  float total = ex2_approx_ftz(sink - ground);
  for (long long s = 0; s < splits; ++s) total += ex2_approx_ftz(lse_shares[s * rows + row] - ground);
  const float whole = highest + lg2_approx_ftz(total), scaled = 1 / (total == 0 ? 1.0f : total);
  T* p = y + y_strides.at(b, h, sequence.q_first + i);
  for (long long d = 2 * lane; d < value_width; d += 2 * kWarp) {
    float first = 0, second = 0;
    for (long long s = 0; s < splits; ++s) {
      const float factor = ex2_approx_ftz(lse_shares[s * rows + row] - ground);
      if (factor == 0) continue;
      const Vec<float, 2> share = load<float, 2>(shares + (s * rows + row) * value_width + d);
      first += factor * share.at[0];
      second += factor * share.at[1];
    }
    store(p + d, Vec<T, 2>{{narrow<T>(first * scaled), narrow<T>(second * scaled)}});
  }
  if (lse && lane == 0) lse[b * lse_batch + h * lse_head + sequence.q_first + i] = whole * kLn2;
}
