// Attention backward on tensor cores, half types (after FlashAttention-2, Dao 2023), the gradients of the queries or
// those of keys and values:
//   grad_q[i] = scale sum_j ds[i, j] k[j],  grad_k[j] = scale sum_i ds[i, j] q[i],  grad_v[j] = sum_i p[i, j] grad_y[i]
// with p and ds of slopes.cuh, rounded to the half type before they meet the other operand. Nothing is added from two
// blocks: the same bits at every run.
//
// Layout:  as in mma.cu. Each warp owns 16 rows (queries, or keys with kKeyRows) of a block of 16 kWarps; the columns
//          (keys, or the queries of all heads of the group) come in panels of kColumns, two in flight. Scores are
//          computed with the rows as rows of A, so that p and ds are A of the second product as they stand in
//          registers.
// Needs:   rows aligned to 16 bytes, D and D_v multiples of 8 and at most kWidth, a positive scale.
// Bound:   tensor cores: for each score 6 D + 2 D_v (queries) or 4 D + 4 D_v operations, less where D_v is not D.

#include "attention/panels.cuh"
#include "attention/gradient.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kKeyRows = true;
  using Given = dnnarray::Given<false, false, false>;
  static constexpr int kWidth = 128;
  static constexpr int kWarps = 4;
  static constexpr int kColumns = 32;
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
  dnnarray::Extra extra;
};
#define DNNARRAY_ENTRY attention_mma_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = Mma<T>;
constexpr bool kKeyRows = Config::kKeyRows;
constexpr int kWidth = Config::kWidth, kColumns = Config::kColumns, kThreads = 32 * Config::kWarps,
              kRows = 16 * Config::kWarps;
constexpr int kScoreTiles = kColumns / 8, kWidthTiles = kWidth / 8;
// Where the assembler would spill the addresses of all steps, which it takes at once.
#if __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1000
constexpr int kSteps = Config::Given::kExtras && kWidth == 128 ? 1 : kWidth / 16;
#else
constexpr int kSteps = kWidth / 16;
#endif
using Block = Panel<kWidth>;
using Scores = float[kScoreTiles][4];
using Total = float[kWidthTiles][4];

// s = the products of this warp's rows with the rows of a panel.
__device__ __forceinline__ void multiply(Scores& s, const Block& rows, int row, const Block& columns) {
#pragma unroll
  for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = 0;
#pragma unroll kSteps
  for (int step = 0; step < kWidth / 16; ++step) {
    unsigned a[4];
    rows.a(row, step, a);
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      unsigned b[4];
      columns.b(8 * n, step, b);
      M::add(s[n], a, b[0], b[1]);
      M::add(s[n + 1], a, b[2], b[3]);
    }
  }
}

// total += s times the rows of a panel.
__device__ __forceinline__ void accumulate(Total& total, const Scores& s, const Block& columns) {
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
    const unsigned a[4] = {M::pack(s[2 * step][0], s[2 * step][1]), M::pack(s[2 * step][2], s[2 * step][3]),
                           M::pack(s[2 * step + 1][0], s[2 * step + 1][1]),
                           M::pack(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < kWidthTiles; n += 2) {
      unsigned b[4];
      columns.b_transposed(16 * step, n, b);
      M::add(total[n], a, b[0], b[1]);
      M::add(total[n + 1], a, b[2], b[3]);
    }
  }
}

// `grad` is null where lse alone has a gradient. `out` is grad_q or grad_k, `value_out` grad_v, null where not wanted.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const T* __restrict__ grad, const float* __restrict__ lse, const float* __restrict__ delta,
                   const __grid_constant__ Arguments a) {
  T *out = a.out, *value_out = a.value_out;
  const long long width = a.width, value_width = a.value_width, lse_batch = a.lse_batch, lse_head = a.lse_head,
                  tiles = a.tiles;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides,
                grad_strides = a.grad_strides, out_strides = a.out_strides, value_out_strides = a.value_out_strides;
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  constexpr unsigned kRowPanel = kRows * kWidth * 2, kPanel = kColumns * kWidth * 2;
  constexpr int kKnown = kKeyRows ? kColumns : kRows;
  const Block rows = {shared_address(dynamic_shared)}, value_rows = {rows.start + kRowPanel};
  const unsigned stages = value_rows.start + kRowPanel;
  float* numbers = reinterpret_cast<float*>(dynamic_shared + 2 * kRowPanel + 4 * kPanel);
  const Rule rule = Config::Given::rule(a.rule);
  const Extra extra = Config::Given::extra(a.extra);
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
  const long long panels = end > begin ? (end - begin + kColumns - 1) / kColumns : 0;

  // Panel n of all heads: the columns and, of queries, what is known of them.
  const auto fetch = [&](long long n) {
    const long long h = first_head + n / panels, c0 = begin + n % panels * kColumns;
    const unsigned stage = stages + (n & 1) * 2 * kPanel;
    const Source<T> column = kKeyRows ? queries_of(h) : keys_, value_column = kKeyRows ? grads_of(h) : values;
    Block{stage}.fetch<kColumns, kThreads>(q, width, [&](int r) { return column.at(c0 + r); });
    Block{stage + kPanel}.fetch<kColumns, kThreads>(q, value_width, [&](int r) { return value_column.at(c0 + r); });
    cp_async_commit_group();
    if constexpr (kKeyRows) {
      float* known = numbers + (n & 1) * 2 * kKnown;
      Known{known, known + kKnown}.fetch<kThreads>(lse + lse_of(h), delta + lse_of(h), c0, kColumns, sequence);
    }
  };
  const Source<T> own = kKeyRows ? keys_ : queries_of(row_head), own_value = kKeyRows ? values : grads_of(row_head);
  rows.fetch<kRows, kThreads>(q, width, [&](int r) { return own.at(row0 + r); });
  value_rows.fetch<kRows, kThreads>(q, value_width, [&](int r) { return own_value.at(row0 + r); });
  if constexpr (!kKeyRows)
    Known{numbers, numbers + kKnown}.fetch<kThreads>(lse + lse_of(row_head), delta + lse_of(row_head), row0, kRows,
                                                     sequence);
  if (panels) fetch(0);

  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16;
  const float unit = float(rule.scale) * kLog2e;
  Total total = {}, value_total = {};
  for (long long n = 0; n < panels * count; ++n) {
    cp_async_wait_group<0>();
    __syncthreads();
    if (n + 1 < panels * count) fetch(n + 1);
    const long long h = first_head + n / panels, c0 = begin + n % panels * kColumns;
    const unsigned stage = stages + (n & 1) * 2 * kPanel;
    const Block columns = {stage}, value_columns = {stage + kPanel};
    float* known = kKeyRows ? numbers + (n & 1) * 2 * kKnown : numbers;
    const long long i0 = kKeyRows ? c0 : row0, i1 = i0 + (kKeyRows ? kColumns : kRows), j0 = kKeyRows ? row0 : c0;
    const bool partial = i1 > sequence.q_end || j0 + (kKeyRows ? kRows : kColumns) - 1 > sequence.last(i0) ||
                         j0 < sequence.first(i1 - 1);
    const Head<T> head(rule, extra, b, h);
    Scores s, d;
    multiply(s, rows, row, columns);
    multiply(d, value_rows, row, value_columns);
    evaluate<kKeyRows, Config::Given::kExtras>(s, d, head, sequence, {known, known + kKnown}, row + lane / 4,
                                               lane % 4 * 2, row0 + row + lane / 4, c0 + lane % 4 * 2, partial, unit,
                                               float(rule.keep_scale));
    accumulate(total, d, columns);
    if constexpr (kKeyRows) accumulate(value_total, s, value_columns);
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
