// Attention forward on tensor cores, half types (after FlashAttention-2, Dao 2023): y[i] = sum_j exp(s[i, j] - lse[i])
// v[j]. Products are summed in float; the weights are rounded to the half type before they meet the values.
//
// Layout:  rows of q, k, v and y by strides, features side by side; sequences dense, packed, or keys in the blocks of a
//          cache (kPaged). A block of four warps owns 64 kRowTiles queries of one head, a warp 16 kRowTiles of them;
//          scores, weights and results stay in registers. Keys and values come in panels of kKeys, two in flight.
// Needs:   rows aligned to 16 bytes, D and D_v multiples of 8 and at most kWidth, a positive scale. Given::kExtras:
//          cap, ALiBi, bias, mask, dropout.
// Bound:   tensor cores: 2 (D + D_v) operations for each score.

#include "attention/panels.cuh"
#include "attention/rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Output = dnnarray::bfloat16_t;
  using Given = dnnarray::Given<false, false, false>;
  static constexpr bool kPaged = false;
  static constexpr int kWidth = 128;
  static constexpr int kRowTiles = 2;
  static constexpr int kKeys = 64;
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
  dnnarray::Extra extra;
};
#define DNNARRAY_ENTRY attention_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
using O = Config::Output;
using M = Mma<T>;
constexpr int kWidth = Config::kWidth, kKeys = Config::kKeys, kRowTiles = Config::kRowTiles, kThreads = 128;
// Where the assembler would spill: by itself it takes three blocks to a multiprocessor, and all addresses of a panel at
// once.
#if __CUDA_ARCH__ >= 1000
constexpr int kBlocks = Config::Given::kExtras ? 0 : 2, kSteps = kWidth == 256 ? 1 : kRowTiles == 2 ? 2 : kWidth / 16;
constexpr bool kLate = kWidth == 256 && !Config::Given::kExtras;  // the next panel is asked for after the scores
#else
constexpr int kBlocks = 0, kSteps = kWidth / 16;
constexpr bool kLate = false;
#endif
constexpr int kQueries = 64 * kRowTiles, kScoreTiles = kKeys / 8, kValueTiles = kWidth / 8;
using Rows = Panel<kWidth>;
using State = RowState<T, kKeys, kWidth>;
using Keys = KeyRows<T, Config::kPaged>;

// s = q k for the keys of a panel.
__device__ __forceinline__ void multiply_keys(State (&state)[kRowTiles], const Rows& q, const Rows& k, int row) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[m].s[n][e] = 0;
#pragma unroll kSteps
  for (int step = 0; step < kWidth / 16; ++step) {
    unsigned a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) q.a(row + 16 * m, step, a[m]);
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      unsigned b[4];
      k.b(8 * n, step, b);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        M::add(state[m].s[n], a[m], b[0], b[1]);
        M::add(state[m].s[n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// y += weights v; the weights of a lane are its part of A.
__device__ __forceinline__ void multiply_values(State (&state)[kRowTiles], const Rows& v) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    unsigned a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) state[m].template weights<M>(state[m].s, step, a[m]);
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 2) {
      unsigned b[4];
      v.b_transposed(16 * step, n, b);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        M::add(state[m].y[n], a[m], b[0], b[1]);
        M::add(state[m].y[n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, O* __restrict__ y,
                   float* __restrict__ lse, const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, width = a.width, value_width = a.value_width, lse_batch = a.lse_batch,
                  lse_head = a.lse_head;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides, y_strides = a.y_strides;
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  constexpr unsigned kPanel = kKeys * kWidth * 2;
  const Rows rows_q = {shared_address(dynamic_shared)};
  const unsigned stages = rows_q.start + kQueries * kWidth * 2;
  const Rule rule = Config::Given::rule(a.rule);
  const Extra extra = Config::Given::extra(a.extra);
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
  const auto fetch = [&](long long j0, unsigned stage) {
    const Rows rows_k = {stages + stage * 2 * kPanel}, rows_v = {stages + stage * 2 * kPanel + kPanel};
    rows_k.fetch<kKeys, kThreads>(k, width, [&](int r) { return of_k.at(j0 + r); });
    rows_v.fetch<kKeys, kThreads>(v, value_width, [&](int r) { return of_v.at(j0 + r); });
    cp_async_commit_group();
  };
  rows_q.fetch<kQueries, kThreads>(
      q, width, [&](int r) { return i0 + r < sequence.q_end ? first_q + r * q_strides.row : nullptr; });
  if (begin < end) fetch(begin, 0);

  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16 * kRowTiles;
  const long long i = i0 + row + lane / 4;
  const float unit = Config::Given::kExtras ? kLog2e : float(rule.scale) * kLog2e;
  const float sink = rule.sinks ? parameter_at<T>(rule.sinks, rule.sinks_wide, h) * kLog2e / unit : -infinity(0.0f);
  const Head<T> head(rule, extra, b, h);
  State state[kRowTiles];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) state[m].start(sink);

  unsigned stage = 0;
  for (long long j0 = begin; j0 < end; j0 += kKeys, stage ^= 1) {
    cp_async_wait_group<0>();
    __syncthreads();
    if (!kLate && j0 + kKeys < end) fetch(j0 + kKeys, stage ^ 1);
    multiply_keys(state, rows_q, {stages + stage * 2 * kPanel}, row);
    if (kLate && j0 + kKeys < end) fetch(j0 + kKeys, stage ^ 1);
    const long long j = j0 + lane % 4 * 2;
    const bool partial = j0 + kKeys - 1 > sequence.last(i0) || j0 < sequence.first(i0 + kQueries - 1);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if constexpr (Config::Given::kExtras) {
        state[m].change(head, sequence, i + 16 * m, j);
      } else {
        if (partial) state[m].hide(state[m].s, sequence, i + 16 * m, j);
      }
      float shrink[2];
      state[m].absorb(state[m].s, unit, shrink);
      state[m].rescale(shrink);
      if (rule.threshold) state[m].drop(head, i + 16 * m, j);
    }
    multiply_values(state, {stages + stage * 2 * kPanel + kPanel});
  }

  cp_async_wait_group<0>();
  const bool whole = of_k.all_there() && sound(rule, b);
  O* of_y = y + y_strides.at(b, h, sequence.q_first);
  float* of_lse = lse ? lse + b * lse_batch + h * lse_head + sequence.q_first : nullptr;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    state[m].finish(of_y, of_lse, y_strides.row, i + 16 * m, sequence, value_width, unit, float(rule.keep_scale),
                    whole);
  }
}
