// The gradient of the bias of attention: ds of slopes.cuh, summed over all axes along which the bias is repeated.
//
// Layout:  any strides. A block of 256 threads owns a tile of queries x keys of the bias (all queries, or all keys,
//          where it has one) and one of `parts` parts of the (batch, head, query tile, key tile) that meet there; it
//          adds them up in order. With several parts the sums go to scratch memory, (part, element), for sum_parts.cu.
// Needs:   kVector features side by side in aligned rows (1 where they are not).
// Bound:   arithmetic: 2 (D + D_v) operations for each score.

#include "attention/slopes.cuh"
#include "attention/tiles.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Output = float;
  using Given = dnnarray::Given<true, true, true>;
  static constexpr int kPatch = 4;
  static constexpr int kDepth = 32;
  static constexpr int kValues = 64;
  static constexpr int kVector = 4;
};
struct Arguments {
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
  dnnarray::Extra extra;
  long long batches;
  long long own_batches;
  long long own_heads;
  long long own_queries;
  long long own_keys;
  long long chunk;
  long long parts;
  long long part_step;
};
#define DNNARRAY_ENTRY attention_tiled_bias_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using O = Config::Output;
constexpr int P = Config::kPatch;
using Tile = Tiles<T, P, Config::kDepth, Config::kValues, Config::kVector>;

// Add what all threads of a tile hold for the same key (and for the same query); what is left stands in row 0 (column
// 0).
__device__ __forceinline__ void fold(A* shared, bool over_rows, bool over_columns, A (&sum)[P][P]) {
  __syncthreads();
#pragma unroll
  for (int r = 0; r < P; ++r)
#pragma unroll
    for (int c = 0; c < P; ++c) shared[(Tile::row() * P + r) * Tile::kPitch + Tile::column() * P + c] = sum[r][c];
  __syncthreads();
  if (over_rows && threadIdx.x < Tile::kTile) {
    A total = 0;
    for (int r = 0; r < Tile::kTile; ++r) total += shared[r * Tile::kPitch + threadIdx.x];
    shared[threadIdx.x] = total;
  }
  __syncthreads();
  if (over_columns && threadIdx.x < Tile::kTile) {
    A total = 0;
    for (int c = 0; c < Tile::kTile; ++c) total += shared[threadIdx.x * Tile::kPitch + c];
    shared[threadIdx.x * Tile::kPitch] = total;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < P; ++r)
#pragma unroll
    for (int c = 0; c < P; ++c) sum[r][c] = shared[(Tile::row() * P + r) * Tile::kPitch + Tile::column() * P + c];
}

// own_*: extents of the bias, 1 where it is repeated. `part_step` is the distance between parts in the output.
extern "C" __global__ void __launch_bounds__(kTileThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const T* __restrict__ grad, const A* __restrict__ lse, const A* __restrict__ delta,
                   O* __restrict__ out, const __grid_constant__ Arguments a) {
  const long long width = a.width, value_width = a.value_width, lse_batch = a.lse_batch, lse_head = a.lse_head,
                  batches = a.batches, own_batches = a.own_batches, own_heads = a.own_heads,
                  own_queries = a.own_queries, own_keys = a.own_keys, chunk = a.chunk, parts = a.parts,
                  part_step = a.part_step;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides,
                grad_strides = a.grad_strides, out_strides = a.out_strides;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  A *staged_q = reinterpret_cast<A*>(dynamic_shared), *staged_k = staged_q + Tile::kStaged,
    *folded = staged_k + Tile::kStaged;
  const Rule rule = Config::Given::rule(a.rule);
  const Extra extra = Config::Given::extra(a.extra);
  const long long q_tiles = (rule.queries + Tile::kTile - 1) / Tile::kTile,
                  k_tiles = (rule.keys + Tile::kTile - 1) / Tile::kTile;
  const bool all_b = own_batches == 1, all_h = own_heads == 1, all_q = own_queries == 1, all_k = own_keys == 1;
  const Divided by_part = divide_index(blockIdx.x, parts), by_k = divide_index(by_part.quotient, all_k ? 1 : k_tiles);
  const Divided by_q = divide_index(by_k.quotient, all_q ? 1 : q_tiles), by_h = divide_index(by_q.quotient, own_heads);
  const long long meeting =
      (all_b ? batches : 1) * (all_h ? rule.heads : 1) * (all_q ? q_tiles : 1) * (all_k ? k_tiles : 1);
  const long long begin = by_part.remainder * chunk, end = begin + chunk < meeting ? begin + chunk : meeting;
  A sum[P][P] = {};
  for (long long n = begin; n < end; ++n) {
    const Divided of_k = divide_index(n, all_k ? k_tiles : 1), of_q = divide_index(of_k.quotient, all_q ? q_tiles : 1);
    const Divided of_h = divide_index(of_q.quotient, all_h ? rule.heads : 1);
    const long long b = all_b ? of_h.quotient : by_h.quotient, h = all_h ? of_h.remainder : by_h.remainder;
    const long long i0 = (all_q ? of_q.remainder : by_q.remainder) * Tile::kTile,
                    j0 = (all_k ? of_k.remainder : by_k.remainder) * Tile::kTile;
    const Sequence sequence(rule, b);
    long long first, last;
    sequence.keys_of(i0, i0 + Tile::kTile, first, last);
    if (j0 >= last || j0 + Tile::kTile <= first) continue;
    const Head<T> head(rule, extra, b, h);
    const T *of_queries = q + q_strides.at(b, h), *of_keys = k + k_strides.at(b, h / rule.group);
    const T *grads = grad ? grad + grad_strides.at(b, h) : nullptr, *values = v + v_strides.at(b, h / rule.group);
    const auto row_at = [&](const T* p, long long step) {
      return [&sequence, p, i0, step](int r) { return i0 + r < sequence.q_end ? p + (i0 + r) * step : nullptr; };
    };
    const auto key_at = [&](const T* p, long long step) {
      return [&sequence, p, j0, step](int r) { return j0 + r < sequence.k_end ? p + (j0 + r) * step : nullptr; };
    };
    A s[P][P], d[P][P] = {};
    Tile::product(staged_q, staged_k, width, q_strides.column, row_at(of_queries, q_strides.row), k_strides.column,
                  key_at(of_keys, k_strides.row), s);
    if (grad) {
      Tile::product(staged_q, staged_k, value_width, grad_strides.column, row_at(grads, grad_strides.row),
                    v_strides.column, key_at(values, v_strides.row), d);
    }
    const long long of_lse = b * lse_batch + h * lse_head;
    const Slopes<T, P, false> slopes_of = {head, sequence, lse + of_lse, delta + of_lse, A(rule.keep_scale)};
    slopes_of.template evaluate<false, false>(s, d, i0 + Tile::row() * P, j0 + Tile::column() * P);
#pragma unroll
    for (int r = 0; r < P; ++r)
#pragma unroll
      for (int c = 0; c < P; ++c) sum[r][c] += d[r][c];
  }
  if (all_q || all_k) fold(folded, all_q, all_k, sum);
  O* first = out + by_part.remainder * part_step + out_strides.at(by_h.quotient, by_h.remainder);
#pragma unroll
  for (int r = 0; r < P; ++r)
#pragma unroll
    for (int c = 0; c < P; ++c) {
      const long long i = by_q.remainder * Tile::kTile + Tile::row() * P + r,
                      j = by_k.remainder * Tile::kTile + Tile::column() * P + c;
      if (i >= own_queries || j >= own_keys) continue;
      first[i * out_strides.row + j * out_strides.column] = narrow<O>(arithmetic_t<O>(sum[r][c]));
    }
}
