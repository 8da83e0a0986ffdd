// Attention forward on Hopper's tensor cores, half types (after FlashAttention-3, Shah et al. 2024): the sums of mma.cu
// by asynchronous matrix instructions. While the values of one panel are summed, the scores of the next become weights.
//
// Layout:  rows of q, k, v and y by strides, features side by side; sequences dense, packed, or keys in the blocks of a
//          cache (kPaged). A block of kGroups warpgroups owns 64 queries of one head for each, a warp 16 of them;
//          scores, weights and results stay in registers. Keys and values come in panels of kKeys, two of each in
//          shared memory.
// Needs:   sm_90a; rows aligned to 16 bytes, D and D_v multiples of 8 and at most kWidth, a positive scale, nothing
//          else that changes scores.
// Bound:   tensor cores: 2 (D + D_v) operations for each score.

#include "attention/panels.cuh"
#include "attention/rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Output = dnnarray::bfloat16_t;
  static constexpr bool kPaged = false;
  using Given = dnnarray::Given<false, false, false>;
  static constexpr int kWidth = 128;
  static constexpr int kKeys = 128;
  static constexpr int kGroups = 2;
};
struct Arguments {
  long long tiles;
  long long width;
  long long value_width;
  long long lse_batch;
  long long lse_head;
  dnnarray::Strides q_strides;
  dnnarray::Strides k_strides;
  dnnarray::Strides v_strides;
  dnnarray::Strides y_strides;
  dnnarray::Pages pages;
  dnnarray::Rule rule;
};
#define DNNARRAY_ENTRY attention_wgmma_default
#endif

using namespace dnnarray;
using T = Config::Element;
using O = Config::Output;
constexpr int kWidth = Config::kWidth, kKeys = Config::kKeys, kGroups = Config::kGroups, kThreads = 128 * kGroups,
              kQueries = 64 * kGroups, kSteps = kKeys / 16;
using QueryPanels = Panels<kQueries, kWidth>;
using KeyPanels = Panels<kKeys, kWidth>;
using State = RowState<T, kKeys, kWidth>;
using Keys = KeyRows<T, Config::kPaged>;

// Start s = q k for the 64 queries of a warpgroup.
__device__ __forceinline__ void start_scores(State::Scores& s, const QueryPanels& q, const KeyPanels& k, int row) {
  hold(s);
  Wgmma<T, false, false, kKeys>::start(flat(s), q.across(row, 0), k.across(0, 0));
#pragma unroll
  for (int step = 1; step < kWidth / 16; ++step)
    Wgmma<T, false, false, kKeys>::run(flat(s), q.across(row, step), k.across(0, step));
  wgmma_commit_group();
}

// Start y += weights v.
__device__ __forceinline__ void start_values(State& state, const unsigned (&weights)[kSteps][4], const KeyPanels& v) {
  hold(state.y);
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    Wgmma<T, false, true, kWidth>::run(flat(state.y), weights[step], v.down(step));
  wgmma_commit_group();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, O* __restrict__ y,
                   float* __restrict__ lse, const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, width = a.width, value_width = a.value_width, lse_batch = a.lse_batch,
                  lse_head = a.lse_head;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides, y_strides = a.y_strides;
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const QueryPanels rows_q = {shared_address(dynamic_shared)};
  const unsigned first_panel = rows_q.start + QueryPanels::kBytes;
  const Rule rule = Config::Given::rule(a.rule);
  const Divided by_tile = divide_index(blockIdx.x, tiles), by_head = divide_index(by_tile.quotient, rule.heads);
  const long long b = by_head.quotient, h = by_head.remainder, i0 = (tiles - 1 - by_tile.remainder) * kQueries;
  const Sequence sequence(rule, b);
  if (i0 >= sequence.queries) return;
  const Pages pages = a.pages;
  const T* first_q = q + q_strides.at(b, h, sequence.q_first + i0);
  const Keys of_k = key_rows<T, Config::kPaged>(k, k_strides, b, h / rule.group, sequence, pages);
  const Keys of_v = key_rows<T, Config::kPaged>(v, v_strides, b, h / rule.group, sequence, pages);
  long long begin, end;
  sequence.keys_of(i0, i0 + kQueries, begin, end);
  const int panels = end > begin ? static_cast<int>((end - begin + kKeys - 1) / kKeys) : 0;
  const auto panel_k = [&](int n) -> KeyPanels { return {first_panel + (n & 1) * KeyPanels::kBytes}; };
  const auto panel_v = [&](int n) -> KeyPanels { return {first_panel + (2 + (n & 1)) * KeyPanels::kBytes}; };
  const auto fetch = [&](const KeyPanels& panel, const Keys& rows, int n, long long features) {
    const long long j0 = begin + n * static_cast<long long>(kKeys);
    if (n >= panels) return;
    if constexpr (Config::kPaged) {
      panel.template fetch<kThreads>(k, features, [&](int r) { return rows.at(j0 + r); });
    } else {
      panel.template fetch<kThreads>(k, rows.first + j0 * rows.step, rows.step, rows.end - j0, features);
    }
  };
  const auto fetch_k = [&](int n) { fetch(panel_k(n), of_k, n, width); };
  const auto fetch_v = [&](int n) { fetch(panel_v(n), of_v, n, value_width); };
  rows_q.fetch<kThreads>(q, width,
                         [&](int r) { return i0 + r < sequence.q_end ? first_q + r * q_strides.row : nullptr; });
  fetch_k(0);
  cp_async_commit_group();

  const int lane = threadIdx.x % kWarp, row = threadIdx.x / 128 * 64;
  const long long i = i0 + threadIdx.x / kWarp * 16 + lane / 4;
  const float unit = float(rule.scale) * kLog2e;
  const float sink = rule.sinks ? parameter_at<T>(rule.sinks, rule.sinks_wide, h) * kLog2e / unit : -infinity(0.0f);
  State state;
  state.start(sink);
  float* marks = reinterpret_cast<float*>(dynamic_shared + QueryPanels::kBytes + 4 * KeyPanels::kBytes);
  unsigned weights[kSteps][4];
  float shrink[2];
  const auto absorb = [&](int n) {
    hold(state.s);
    const long long j0 = begin + n * static_cast<long long>(kKeys);
    if (j0 + kKeys - 1 > sequence.last(i0) || j0 < sequence.first(i0 + kQueries - 1))
      state.hide(state.s, sequence, i, j0 + lane % 4 * 2);
    state.absorb(state.s, unit, shrink);
  };
  const auto pack = [&] {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) state.template weights<Mma<T>>(state.s, step, weights[step]);
  };

  cp_async_wait_group<0>();
  fence_proxy_async();
  __syncthreads();
  fetch_k(1);
  fetch_v(0);
  cp_async_commit_group();
  if (panels) {
    wgmma_fence();
    start_scores(state.s, rows_q, panel_k(0), row);
    wgmma_wait_group<0>();
    absorb(0);
    pack();
  }
  for (int n = 0; n + 1 < panels; ++n) {
    cp_async_wait_group<0>();
    fence_proxy_async();
    __syncthreads();
    fetch_k(n + 2);  // while few registers are taken
    fetch_v(n + 1);
    cp_async_commit_group();
    wgmma_fence();
    start_scores(state.s, rows_q, panel_k(n + 1), row);
    start_values(state, weights, panel_v(n));
    wgmma_wait_group<1>();
    absorb(n + 1);
    finish_before_wait(marks, state.sum[0] + state.sum[1]);
    wgmma_wait_group<0>();
    hold(state.y);
    state.rescale(shrink);
    pack();
  }
  cp_async_wait_group<0>();
  fence_proxy_async();
  __syncthreads();
  if (panels) {
    wgmma_fence();
    start_values(state, weights, panel_v(panels - 1));
    wgmma_wait_group<0>();
    hold(state.y);
  }
  const bool whole = (!Config::kPaged || of_k.all_there()) && sound(rule, b);
  O* of_y = y + y_strides.at(b, h, sequence.q_first);
  float* of_lse = lse ? lse + b * lse_batch + h * lse_head + sequence.q_first : nullptr;
  state.finish(of_y, of_lse, y_strides.row, i, sequence, value_width, unit, float(rule.keep_scale), whole);
}
