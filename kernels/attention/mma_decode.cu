// Attention forward of few queries, half types: the decoding step. The bound is the reading of keys and values, so the
// query heads that share a key head are rows of one product, the keys are split over blocks until the card is full, and
// over the warps of a block.
//
// Layout:  rows of q, k, v and y by strides, features side by side; sequences dense, packed, or keys in the blocks of a
//          cache (kPaged). Row R of a key head is query R / group of head R % group of its group. A block of four warps
//          owns 16 rows and one of `splits` parts of the keys these see; each warp takes 16 of the 64 keys of a panel.
//          With one part y and lse are written; with several, their shares go to scratch memory, (part, batch, key
//          head, row), for mma_combine.cu: y in float, lse in powers of two.
// Needs:   rows aligned to 16 bytes, D and D_v multiples of 8 and at most kWidth, a positive scale, nothing else that
//          changes scores.
// Bound:   memory: keys and values read once for every 16 rows.

#include "attention/panels.cuh"
#include "attention/rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kPaged = false;
  static constexpr int kWidth = 128;
  static constexpr int kStages = 3;
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
  long long splits;
};
#define DNNARRAY_ENTRY attention_mma_decode_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = Mma<T>;
constexpr int kWidth = Config::kWidth, kStages = Config::kStages, kThreads = 128, kWarps = 4, kRows = 16, kKeys = 64,
              kOwn = 16;
constexpr unsigned kPanel = kKeys * kWidth * 2;
using Rows = Panel<kWidth>;
using State = RowState<T, kOwn, kWidth>;
using Keys = KeyRows<T, Config::kPaged>;

// s = q k for the 16 keys of a warp.
__device__ __forceinline__ void multiply_keys(State& state, const unsigned (&q)[kWidth / 16][4], const Rows& k,
                                              int first) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) state.s[n][e] = 0;
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    unsigned b[4];
    k.b(first, step, b);
    M::add(state.s[0], q[step], b[0], b[1]);
    M::add(state.s[1], q[step], b[2], b[3]);
  }
}

__device__ __forceinline__ void multiply_values(State& state, const Rows& v, int first) {
  unsigned a[4];
  state.template weights<M>(state.s, 0, a);
#pragma unroll
  for (int n = 0; n < State::kValueTiles; n += 2) {
    unsigned b[4];
    v.b_transposed(first, n, b);
    M::add(state.y[n], a, b[0], b[1]);
    M::add(state.y[n + 1], a, b[2], b[3]);
  }
}

// What a warp has of its keys, for the other warps: y, then top (in powers of two) and sum of each row.
__device__ __forceinline__ void share(State& state, float* shared, float unit) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float *y = shared + warp * kRows * kWidth, *top = shared + kWarps * kRows * kWidth + warp * kRows,
        *sum = top + kWarps * kRows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    float total = state.sum[r];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    if (lane % 4 == 0) top[row] = state.top[r] * unit, sum[row] = total;
#pragma unroll
    for (int n = 0; n < State::kValueTiles; ++n)
      *reinterpret_cast<Vec<float, 2>*>(y + row * kWidth + 8 * n +
                                        lane % 4 * 2) = {{state.y[n][2 * r], state.y[n][2 * r + 1]}};
  }
}

// The powers of two that make the shares of the warps one sum, divided by it; comes back with lse in powers of two.
__device__ __forceinline__ float join(const float* shared, int row, float (&factor)[kWarps]) {
  const float *top = shared + kWarps * kRows * kWidth + row, *sum = top + kWarps * kRows;
  float highest = top[0], total = 0;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, top[w * kRows]);
  const float ground = highest == -infinity(0.0f) ? 0.0f : highest;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sum[w * kRows] * (factor[w] = ex2_approx_ftz(top[w * kRows] - ground));
  const float scale = 1 / (total == 0 ? 1.0f : total);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) factor[w] *= scale;
  return highest + lg2_approx_ftz(total);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ y,
                   float* __restrict__ lse, float* __restrict__ shares, float* __restrict__ lse_shares,
                   const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, width = a.width, value_width = a.value_width, lse_batch = a.lse_batch,
                  lse_head = a.lse_head, splits = a.splits;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides, y_strides = a.y_strides;
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  const unsigned start = shared_address(dynamic_shared);
  const Rule rule = a.rule;
  const long long kv_heads = rule.heads / rule.group;
  const Divided by_split = divide_index(blockIdx.x, splits), by_tile = divide_index(by_split.quotient, tiles);
  const Divided by_head = divide_index(by_tile.quotient, kv_heads);
  const long long b = by_head.quotient, key_head = by_head.remainder, row0 = by_tile.remainder * kRows,
                  part = by_split.remainder;
  const Sequence sequence(rule, b);
  const long long rows = sequence.queries * rule.group, i0 = row0 / rule.group,
                  i1 = (row0 + kRows - 1) / rule.group + 1;
  if (row0 >= rows) return;
  const Pages pages = a.pages;
  const T* first_q = q + q_strides.at(b, key_head * rule.group, sequence.q_first);
  const Keys of_k = key_rows<T, Config::kPaged>(k, k_strides, b, key_head, sequence, pages);
  const Keys of_v = key_rows<T, Config::kPaged>(v, v_strides, b, key_head, sequence, pages);
  long long begin, end;
  sequence.keys_of(i0, i1, begin, end);
  if (end < begin) end = begin;
  const long long chunk = ((end - begin + splits - 1) / splits + kKeys - 1) / kKeys * kKeys;
  begin += part * chunk;
  if (begin + chunk < end) end = begin + chunk;
  const int panels = end > begin ? static_cast<int>((end - begin + kKeys - 1) / kKeys) : 0;
  const auto fetch = [&](int n) {
    const Rows rows_k = {start + n % kStages * 2 * kPanel}, rows_v = {rows_k.start + kPanel};
    const long long j0 = begin + n * static_cast<long long>(kKeys);
    if (n < panels) {
      rows_k.fetch<kKeys, kThreads>(k, width, [&](int r) { return of_k.at(j0 + r); });
      rows_v.fetch<kKeys, kThreads>(v, value_width, [&](int r) { return of_v.at(j0 + r); });
    }
    cp_async_commit_group();
  };

  // The queries go through the last stage, which is filled again only later.
  const Rows rows_q = {start + (kStages - 1) * 2 * kPanel};
  rows_q.fetch<kRows, kThreads>(q, width, [&](int r) -> const T* {
    const Divided place = divide_index(row0 + r, rule.group);
    const bool there = row0 + r < rows && place.quotient < sequence.q_end;
    return there ? first_q + q_strides.at(0, place.remainder, place.quotient) : nullptr;
  });
  cp_async_commit_group();
#pragma unroll
  for (int n = 0; n < kStages - 1; ++n) fetch(n);
  cp_async_wait_group<kStages - 1>();
  __syncthreads();
  unsigned of_q[kWidth / 16][4];
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) rows_q.a(0, step, of_q[step]);

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float unit = float(rule.scale) * kLog2e;
  State state;
  state.start(-infinity(0.0f));
  const long long own_row = row0 + lane / 4, of_row[2] = {own_row / rule.group, (own_row + 8) / rule.group};
  for (int n = 0; n < panels; ++n) {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    fetch(n + kStages - 1);
    const Rows rows_k = {start + n % kStages * 2 * kPanel}, rows_v = {rows_k.start + kPanel};
    const long long j = begin + n * static_cast<long long>(kKeys) + warp * kOwn;
    multiply_keys(state, of_q, rows_k, warp * kOwn);
    if (j + kOwn > end || j + kOwn - 1 > sequence.last(i0) || j < sequence.first(i1 - 1)) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const long long at = j + 8 * m + lane % 4 * 2 + (e & 1);
          if (at >= end || !sequence.sees(of_row[e >> 1], at)) state.s[m][e] = -infinity(0.0f);
        }
    }
    float shrink[2];
    state.absorb(state.s, unit, shrink);
    state.rescale(shrink);
    multiply_values(state, rows_v, warp * kOwn);
  }
  cp_async_wait_group<0>();
  __syncthreads();
  float* shared = reinterpret_cast<float*>(dynamic_shared);
  share(state, shared, unit);
  const bool whole = of_k.all_there() && sound(rule, b);

  const long long batches = gridDim.x / (splits * tiles * kv_heads);
  const long long scratch_row = ((part * batches + b) * kv_heads + key_head) * rule.queries * rule.group + row0;
  for (int n = threadIdx.x; n < kRows * kWidth / 8; n += kThreads) {
    const int r = n / (kWidth / 8), d = n % (kWidth / 8) * 8;
    if (row0 + r >= rows || d >= value_width) continue;
    const Divided place = divide_index(row0 + r, rule.group);
    const long long i = place.quotient, h = key_head * rule.group + place.remainder;
    float factor[kWarps], total = join(shared, r, factor), value[8] = {};
    if (!whole) factor[0] = total = quiet_nan(0.0f);
    if (splits == 1 && rule.sinks && i < sequence.q_end) {  // one share more, without a value
      const float sink = parameter_at<T>(rule.sinks, rule.sinks_wide, h) * kLog2e, higher = fmaxf(sink, total);
      if (higher != -infinity(0.0f)) {
        const float joined = higher + lg2_approx_ftz(ex2_approx_ftz(sink - higher) + ex2_approx_ftz(total - higher)),
                    shrink = ex2_approx_ftz(total - joined);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) factor[w] *= shrink;
        total = joined;
      }
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] += factor[w] * shared[(w * kRows + r) * kWidth + d + j];
    if (splits == 1) {
      Vec<T, 8> out;
#pragma unroll
      for (int j = 0; j < 8; ++j) out.at[j] = narrow<T>(i < sequence.q_end ? value[j] : 0.0f);
      store(y + y_strides.at(b, h, sequence.q_first + i) + d, out);
      if (lse && d == 0)
        lse[b * lse_batch + h * lse_head + sequence.q_first + i] = i < sequence.q_end ? total * kLn2 : -infinity(0.0f);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) shares[(scratch_row + r) * value_width + d + j] = value[j];
      if (d == 0) lse_shares[scratch_row + r] = i < sequence.q_end ? total : -infinity(0.0f);
    }
  }
}
