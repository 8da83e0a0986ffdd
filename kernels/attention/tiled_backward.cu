// Attention backward on the ordinary arithmetic units, one of three gradients a launch: with the weights p and the gradients of the scores
// ds of attention_slopes.cuh
//   grad_q[i] = scale sum_j ds[i, j] k[j],  grad_k[j] = scale sum_i ds[i, j] q[i],  grad_v[j] = sum_i p[i, j] grad_y[i],
// the sums over i going through all heads that share a key head. Nothing is added from two blocks: the same bits at every run.
//
// Layout:  any strides; sequences dense or packed. A block of 256 threads owns a tile of rows (queries, or keys) of one head and kValues
//          features of the result, and walks over the columns (keys, or queries of all heads of the group) that meet them.
// Needs:   kVector features side by side in aligned rows (1 where they are not). Every option of the operation.
// Bound:   arithmetic: for each score 2 D (grad_v) or 2 (D + D_v), and 2 D or 2 D_v, operations.

#include "dnnarray/attention_slopes.cuh"
#include "dnnarray/attention_tiles.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kTarget = 0;
  using Given = dnnarray::Given<true, true, true>;
  static constexpr int kPatch = 4;
  static constexpr int kDepth = 32;
  static constexpr int kValues = 64;
  static constexpr int kVector = 4;
};
#define DNNARRAY_ENTRY attention_tiled_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
enum Target { kOfQueries, kOfKeys, kOfValues };
constexpr bool kKeyRows = Config::kTarget != kOfQueries, kWeightsOnly = Config::kTarget == kOfValues;
constexpr int P = Config::kPatch;
using Tile = Tiles<T, P, Config::kDepth, Config::kValues, Config::kVector>;

// The rows of an array of one head and one sequence; null past `end`.
struct Source {
  const T* first;
  long long step, end;

  __device__ __forceinline__ const T* at(long long row) const { return first && row < end ? first + row * step : nullptr; }
};

// `g` is grad_y, null where there is none. `delta` and `lse` lie alike.
extern "C" __global__ void __launch_bounds__(kTileThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ g,
                   const A* __restrict__ lse, const A* __restrict__ delta, T* __restrict__ out, long long tiles, long long slices,
                   long long width, long long value_width, long long lse_batch, long long lse_head, DNNARRAY_STRIDES(q),
                   DNNARRAY_STRIDES(k), DNNARRAY_STRIDES(v), DNNARRAY_STRIDES(g), DNNARRAY_STRIDES(out), DNNARRAY_EXTRA, DNNARRAY_RULE) {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  A *staged_rows = reinterpret_cast<A*>(dynamic_shared), *staged_columns = staged_rows + Tile::kStaged;
  A *weights = staged_columns + Tile::kStaged, *staged_values = weights + Tile::kWeights;
  const Rule rule = Config::Given::rule(DNNARRAY_RULE_VALUES);
  const Extra extra = Config::Given::extra(DNNARRAY_EXTRA_VALUES);
  const long long row_heads = kKeyRows ? heads / group : heads;
  const Divided by_slice = divide_index(blockIdx.x, slices), by_tile = divide_index(by_slice.quotient, tiles);
  const Divided by_head = divide_index(by_tile.quotient, row_heads);
  const long long b = by_head.quotient, row_head = by_head.remainder, d0 = by_slice.remainder * Tile::kValues;
  const long long row0 = (kKeyRows ? by_tile.remainder : tiles - 1 - by_tile.remainder) * Tile::kTile;
  const Sequence sequence(rule, b);
  const long long rows = kKeyRows ? sequence.keys : sequence.queries;
  if (row0 >= rows) return;
  const long long key_head = kKeyRows ? row_head : row_head / group;
  const Source keys_ = {k + b * k_batch + key_head * k_head + sequence.k_first * k_row, k_row, sequence.k_end};
  const Source values = {v + b * v_batch + key_head * v_head + sequence.k_first * v_row, v_row, sequence.k_end};
  long long begin, end;
  if constexpr (kKeyRows) {
    sequence.queries_of(row0, row0 + Tile::kTile, begin, end);
  } else {
    sequence.keys_of(row0, row0 + Tile::kTile, begin, end);
  }

  A total[P][Tile::kOwn] = {};
  const long long first_head = kKeyRows ? row_head * group : row_head, last_head = kKeyRows ? first_head + group : row_head + 1;
  for (long long h = first_head; h < last_head; ++h) {
    const Head<T> head(rule, extra, b, h);
    const long long row_of_lse = b * lse_batch + h * lse_head + sequence.q_first;
    const Slopes<T, P, kKeyRows> slopes_of = {head, sequence, lse + row_of_lse, delta + row_of_lse, A(keep_scale)};
    const Source queries_ = {q + b * q_batch + h * q_head + sequence.q_first * q_row, q_row, sequence.q_end};
    const Source grads = {g ? g + b * g_batch + h * g_head + sequence.q_first * g_row : nullptr, g_row, sequence.q_end};
    const Source &left = kKeyRows ? keys_ : queries_, &right = kKeyRows ? queries_ : keys_;
    const Source &left_value = kKeyRows ? values : grads, &right_value = kKeyRows ? grads : values;
    const Source& summed = Config::kTarget == kOfQueries ? keys_ : Config::kTarget == kOfKeys ? queries_ : grads;
    const long long left_step = kKeyRows ? k_column : q_column, right_step = kKeyRows ? q_column : k_column;
    const long long left_value_step = kKeyRows ? v_column : g_column, right_value_step = kKeyRows ? g_column : v_column;
    const long long summed_step = Config::kTarget == kOfQueries ? k_column : Config::kTarget == kOfKeys ? q_column : g_column;
    for (long long column0 = begin; column0 < end; column0 += Tile::kTile) {
      A s[P][P], d[P][P] = {};
      const auto row_at = [&](const Source& source) { return [&source, row0](int r) { return source.at(row0 + r); }; };
      const auto column_at = [&](const Source& source) { return [&source, column0](int r) { return source.at(column0 + r); }; };
      Tile::product(staged_rows, staged_columns, width, left_step, row_at(left), right_step, column_at(right), s);
      if (!kWeightsOnly && g) {
        Tile::product(staged_rows, staged_columns, value_width, left_value_step, row_at(left_value), right_value_step, column_at(right_value), d);
      }
      const long long row = row0 + Tile::row() * P, column = column0 + Tile::column() * P;
      slopes_of.template evaluate<kWeightsOnly, true>(s, d, kKeyRows ? column : row, kKeyRows ? row : column);
      Tile::put(weights, kWeightsOnly ? s : d);
      Tile::accumulate(weights, staged_values, d0, kWeightsOnly ? value_width : width, summed_step, column_at(summed), total);
    }
  }

  const long long out_width = kWeightsOnly ? value_width : width;
  const A factor = (kWeightsOnly ? A(1) : A(scale)) * A(whole(rule, b));
  T* first = out + b * out_batch + row_head * out_head + (kKeyRows ? sequence.k_first : sequence.q_first) * out_row;
#pragma unroll
  for (int r = 0; r < P; ++r) {
    const long long row = row0 + Tile::row() * P + r;
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      const long long at = d0 + Tile::feature(c);
      if (row < rows && at < out_width) first[row * out_row + at * out_column] = narrow<T>(total[r][c] * factor);
    }
  }
}
