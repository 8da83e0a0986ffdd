// Attention backward on Hopper's tensor cores, half types: the sums of mma_backward.cu by asynchronous matrix
// instructions.
//
// Layout:  as in mma_backward.cu. Each warpgroup owns 64 rows (queries, or keys with kKeyRows) of a block of 64
//          kGroups; the columns (keys, or the queries of all heads of the group) come in panels of kColumns, two in
//          flight.
// Needs:   sm_90a; rows aligned to 16 bytes, D and D_v multiples of 8 and at most kWidth, a positive scale, nothing
//          else that changes scores.
// Bound:   tensor cores: for each score 6 D + 2 D_v (queries) or 4 D + 4 D_v operations, less where D_v is not D.

#include "attention/panels.cuh"
#include "attention/gradient.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kKeyRows = true;
  using Given = dnnarray::Given<false, false, false>;
  static constexpr int kWidth = 128;
  static constexpr int kGroups = 2;
  static constexpr int kColumns = 64;
};
struct Arguments {
  Config::Element* out;
  long long width;
  long long value_width;
  long long lse_batch;
  long long lse_head;
  dnnarray::Strides q_strides;
  dnnarray::Strides k_strides;
  dnnarray::Strides v_strides;
  dnnarray::Strides grad_strides;
  dnnarray::Strides out_strides;
  dnnarray::Rule rule;
  long long tiles;
  Config::Element* value_out;
  dnnarray::Strides value_out_strides;
};
#define DNNARRAY_ENTRY attention_wgmma_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = Mma<T>;
constexpr bool kKeyRows = Config::kKeyRows;
constexpr int kWidth = Config::kWidth, kColumns = Config::kColumns, kThreads = 128 * Config::kGroups,
              kRows = 64 * Config::kGroups;
constexpr int kScoreTiles = kColumns / 8, kWidthTiles = kWidth / 8;
using RowPanels = Panels<kRows, kWidth>;
using ColumnPanels = Panels<kColumns, kWidth>;
using Scores = float[kScoreTiles][4];
using Total = float[kWidthTiles][4];

// Start s = the products of a warpgroup's rows with the rows of a panel.
__device__ __forceinline__ void start_scores(Scores& s, const RowPanels& rows, int row, const ColumnPanels& columns) {
  hold(s);
  Wgmma<T, false, false, kColumns>::start(flat(s), rows.across(row, 0), columns.across(0, 0));
#pragma unroll
  for (int step = 1; step < kWidth / 16; ++step)
    Wgmma<T, false, false, kColumns>::run(flat(s), rows.across(row, step), columns.across(0, step));
  wgmma_commit_group();
}

__device__ __forceinline__ void pack(const Scores& s, unsigned (&a)[kColumns / 16][4]) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float (&of)[4] = s[2 * step + half];
      a[step][2 * half] = M::pack(of[0], of[1]);
      a[step][2 * half + 1] = M::pack(of[2], of[3]);
    }
}

// Start total += a times the rows of a panel.
__device__ __forceinline__ void start_sum(Total& total, const unsigned (&a)[kColumns / 16][4],
                                          const ColumnPanels& columns) {
  hold(total);
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step)
    Wgmma<T, false, true, kWidth>::run(flat(total), a[step], columns.down(step));
  wgmma_commit_group();
}

// `grad` is null where lse alone has a gradient. `out` is grad_q or grad_k, `value_out` grad_v, null where not wanted.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const T* __restrict__ grad, const float* __restrict__ lse, const float* __restrict__ delta,
                   const __grid_constant__ Arguments a) {
  T *out = a.out, *value_out = a.value_out;
  const long long width = a.width, value_width = a.value_width, lse_batch = a.lse_batch, lse_head = a.lse_head,
                  tiles = a.tiles;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides,
                grad_strides = a.grad_strides, out_strides = a.out_strides, value_out_strides = a.value_out_strides;
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  constexpr unsigned kRowPanel = kRows * kWidth * 2, kPanel = kColumns * kWidth * 2;
  constexpr int kKnown = kKeyRows ? kColumns : kRows;
  const RowPanels rows = {shared_address(dynamic_shared)}, value_rows = {rows.start + kRowPanel};
  const unsigned stages = value_rows.start + kRowPanel;
  float* numbers = reinterpret_cast<float*>(dynamic_shared + 2 * kRowPanel + 4 * kPanel);
  const Rule rule = Config::Given::rule(a.rule);
  const long long row_heads = kKeyRows ? rule.heads / rule.group : rule.heads;
  const Divided by_tile = divide_index(blockIdx.x, tiles), by_head = divide_index(by_tile.quotient, row_heads);
  const long long b = by_head.quotient, row_head = by_head.remainder;
  const long long key_head = kKeyRows ? row_head : row_head / rule.group;
  const long long row0 = (kKeyRows ? by_tile.remainder : tiles - 1 - by_tile.remainder) * kRows;
  const Sequence sequence(rule, b);
  const long long row_end = kKeyRows ? sequence.keys : sequence.queries;
  if (row0 >= row_end) return;
  const Source<T> keys_ = keys_at(k, k_strides, b, key_head, sequence);
  const Source<T> values = keys_at(v, v_strides, b, key_head, sequence);
  const long long first_head = kKeyRows ? row_head * rule.group : row_head, count = kKeyRows ? rule.group : 1;
  const auto queries_of = [&](long long h) { return queries_at(q, q_strides, b, h, sequence); };
  const auto grads_of = [&](long long h) -> Source<T> {
    return {grad ? grad + grad_strides.at(b, h, sequence.q_first) : nullptr, grad_strides.row, sequence.q_end};
  };
  const auto lse_of = [&](long long h) { return b * lse_batch + h * lse_head + sequence.q_first; };
  long long begin, end;
  if constexpr (kKeyRows) {
    sequence.queries_of(row0, row0 + kRows, begin, end);
  } else {
    sequence.keys_of(row0, row0 + kRows, begin, end);
  }
  const int panels = end > begin ? static_cast<int>((end - begin + kColumns - 1) / kColumns) : 0;

  // Panel n of a head: the columns and, of queries, what is known of them.
  const auto fetch = [&](long long h, int n, int stage_of) {
    const long long c0 = begin + n * static_cast<long long>(kColumns);
    const unsigned stage = stages + stage_of * 2 * kPanel;
    const Source<T> column = kKeyRows ? queries_of(h) : keys_, value_column = kKeyRows ? grads_of(h) : values;
    ColumnPanels{stage}.template fetch<kThreads>(q, column.first + c0 * column.step, column.step, column.end - c0,
                                                 width);
    ColumnPanels{stage + kPanel}.template fetch<kThreads>(q, value_column.first + c0 * value_column.step,
                                                          value_column.step,
                                                          value_column.first ? value_column.end - c0 : 0, value_width);
    cp_async_commit_group();
    if constexpr (kKeyRows) {
      float* known = numbers + stage_of * 2 * kKnown;
      Known{known, known + kKnown}.fetch<kThreads>(lse + lse_of(h), delta + lse_of(h), c0, kColumns, sequence);
    }
  };
  const Source<T> own = kKeyRows ? keys_ : queries_of(row_head), own_value = kKeyRows ? values : grads_of(row_head);
  rows.fetch<kThreads>(q, width, [&](int r) { return own.at(row0 + r); });
  value_rows.fetch<kThreads>(q, value_width, [&](int r) { return own_value.at(row0 + r); });
  if constexpr (!kKeyRows)
    Known{numbers, numbers + kKnown}.fetch<kThreads>(lse + lse_of(row_head), delta + lse_of(row_head), row0, kRows,
                                                     sequence);
  if (panels) fetch(first_head, 0, 0);

  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16, group_row = threadIdx.x / 128 * 64;
  const float unit = float(rule.scale) * kLog2e;
  Total total = {}, value_total = {};
  int head_number = 0, panel = 0;
  for (int stage_of = 0; panel < panels; stage_of ^= 1) {
    cp_async_wait_group<0>();
    fence_proxy_async();
    __syncthreads();
    const long long c0 = begin + panel * static_cast<long long>(kColumns);
    if (++panel == panels && head_number + 1 < count) panel = 0, ++head_number;
    if (panel < panels) fetch(first_head + head_number, panel, stage_of ^ 1);  // while few registers are taken
    const unsigned stage = stages + stage_of * 2 * kPanel;
    const ColumnPanels columns = {stage}, value_columns = {stage + kPanel};
    Scores s, d;
    wgmma_fence();
    start_scores(s, rows, group_row, columns);
    start_scores(d, value_rows, group_row, value_columns);
    float* known = kKeyRows ? numbers + stage_of * 2 * kKnown : numbers;
    const long long i0 = kKeyRows ? c0 : row0, i1 = i0 + (kKeyRows ? kColumns : kRows), j0 = kKeyRows ? row0 : c0;
    const bool partial = i1 > sequence.q_end || j0 + (kKeyRows ? kRows : kColumns) - 1 > sequence.last(i0) ||
                         j0 < sequence.first(i1 - 1);
    const Known of_panel = {known, known + kKnown};
    const int own_row = row + lane / 4, own_column = lane % 4 * 2;
    unsigned of_s[kColumns / 16][4], of_d[kColumns / 16][4];
    wgmma_wait_group<1>();
    hold(s);
    scores_to_weights<kKeyRows>(s, sequence, of_panel, own_row, own_column, row0 + own_row, c0 + own_column, partial,
                                unit);
    if constexpr (kKeyRows) {
      pack(s, of_s);
      wgmma_fence();
      start_sum(value_total, of_s, value_columns);
      wgmma_wait_group<1>();
      hold(d);
      slope<T, kKeyRows>(of_s, d, of_panel, own_row, own_column);
    } else {
      wgmma_wait_group<0>();
      hold(d);
      slope<kKeyRows>(s, d, of_panel, own_row, own_column);
    }
    pack(d, of_d);
    wgmma_fence();
    start_sum(total, of_d, columns);
    wgmma_wait_group<0>();
    hold(total);
    if constexpr (kKeyRows) hold(value_total);
  }
  cp_async_wait_group<0>();
  const long long first_row = kKeyRows ? sequence.k_first : sequence.q_first;
  if (out) {
    const float factor = float(rule.scale) * whole(rule, b);
    put(out + out_strides.at(b, row_head, first_row), out_strides.row, total, row0 + row, row_end, width, factor);
  }
  if (kKeyRows && value_out) {
    T* first = value_out + value_out_strides.at(b, row_head, first_row);
    put(first, value_out_strides.row, value_total, row0 + row, row_end, value_width, whole(rule, b));
  }
}
