// Attention backward on the CUDA cores, one of three gradients a launch: with the weights p and the gradients of the
// scores ds of slopes.cuh
//   grad_q[i] = scale sum_j ds[i, j] k[j],  grad_k[j] = scale sum_i ds[i, j] q[i],  grad_v[j] = sum_i p[i, j]
//   grad_y[i],
// the sums over i going through all heads that share a key head. Nothing is added from two blocks: the same bits at
// every run.
//
// Layout:  any strides; sequences dense or packed. A block of 256 threads owns a tile of rows (queries, or keys) of one
//          head and kValues features of the result, and walks over the columns (keys, or queries of all heads of the
//          group) that meet them.
// Needs:   kVector features side by side in aligned rows (1 where they are not). Every option of the operation.
// Bound:   arithmetic: for each score 2 D (grad_v) or 2 (D + D_v), and 2 D or 2 D_v, operations.

#include "attention/slopes.cuh"
#include "attention/tiles.cuh"

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
  long long tiles;
  long long slices;
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

// `grad` is null where lse alone has a gradient. `delta` and `lse` lie alike.
extern "C" __global__ void __launch_bounds__(kTileThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   const T* __restrict__ grad, const A* __restrict__ lse, const A* __restrict__ delta,
                   T* __restrict__ out, const __grid_constant__ Arguments a) {
  const long long width = a.width, value_width = a.value_width, lse_batch = a.lse_batch, lse_head = a.lse_head,
                  tiles = a.tiles, slices = a.slices;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides,
                grad_strides = a.grad_strides, out_strides = a.out_strides;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  A *staged_rows = reinterpret_cast<A*>(dynamic_shared), *staged_columns = staged_rows + Tile::kStaged;
  A *weights = staged_columns + Tile::kStaged, *staged_values = weights + Tile::kWeights;
  const Rule rule = Config::Given::rule(a.rule);
  const Extra extra = Config::Given::extra(a.extra);
  const long long row_heads = kKeyRows ? rule.heads / rule.group : rule.heads;
  const Divided by_slice = divide_index(blockIdx.x, slices), by_tile = divide_index(by_slice.quotient, tiles);
  const Divided by_head = divide_index(by_tile.quotient, row_heads);
  const long long b = by_head.quotient, row_head = by_head.remainder, d0 = by_slice.remainder * Tile::kValues;
  const long long row0 = (kKeyRows ? by_tile.remainder : tiles - 1 - by_tile.remainder) * Tile::kTile;
  const Sequence sequence(rule, b);
  const long long rows = kKeyRows ? sequence.keys : sequence.queries;
  if (row0 >= rows) return;
  const long long key_head = kKeyRows ? row_head : row_head / rule.group;
  const Source<T> keys_ = keys_at(k, k_strides, b, key_head, sequence);
  const Source<T> values = keys_at(v, v_strides, b, key_head, sequence);
  long long begin, end;
  if constexpr (kKeyRows) {
    sequence.queries_of(row0, row0 + Tile::kTile, begin, end);
  } else {
    sequence.keys_of(row0, row0 + Tile::kTile, begin, end);
  }

  A total[P][Tile::kOwn] = {};
  const long long first_head = kKeyRows ? row_head * rule.group : row_head;
  const long long last_head = kKeyRows ? first_head + rule.group : row_head + 1;
  for (long long h = first_head; h < last_head; ++h) {
    const Head<T> head(rule, extra, b, h);
    const long long row_of_lse = b * lse_batch + h * lse_head + sequence.q_first;
    const Slopes<T, P, kKeyRows> slopes_of = {head, sequence, lse + row_of_lse, delta + row_of_lse, A(rule.keep_scale)};
    const Source<T> queries_ = queries_at(q, q_strides, b, h, sequence);
    const T* first_grad = grad ? grad + grad_strides.at(b, h, sequence.q_first) : nullptr;
    const Source<T> grads = {first_grad, grad_strides.row, sequence.q_end};
    const Source<T>&left = kKeyRows ? keys_ : queries_, &right = kKeyRows ? queries_ : keys_;
    const Source<T>&left_value = kKeyRows ? values : grads, &right_value = kKeyRows ? grads : values;
    const Source<T>& summed = Config::kTarget == kOfQueries ? keys_ : Config::kTarget == kOfKeys ? queries_ : grads;
    const long long left_step = kKeyRows ? k_strides.column : q_strides.column;
    const long long right_step = kKeyRows ? q_strides.column : k_strides.column;
    const long long left_value_step = kKeyRows ? v_strides.column : grad_strides.column;
    const long long right_value_step = kKeyRows ? grad_strides.column : v_strides.column;
    const long long summed_step = Config::kTarget == kOfQueries ? k_strides.column
                                  : Config::kTarget == kOfKeys  ? q_strides.column
                                                                : grad_strides.column;
    for (long long column0 = begin; column0 < end; column0 += Tile::kTile) {
      A s[P][P], d[P][P] = {};
      const auto row_at = [&](const Source<T>& source) {
        return [&source, row0](int r) { return source.at(row0 + r); };
      };
      const auto column_at = [&](const Source<T>& source) {
        return [&source, column0](int r) { return source.at(column0 + r); };
      };
      Tile::product(staged_rows, staged_columns, width, left_step, row_at(left), right_step, column_at(right), s);
      if (!kWeightsOnly && grad) {
        Tile::product(staged_rows, staged_columns, value_width, left_value_step, row_at(left_value), right_value_step,
                      column_at(right_value), d);
      }
      const long long row = row0 + Tile::row() * P, column = column0 + Tile::column() * P;
      slopes_of.template evaluate<kWeightsOnly, true>(s, d, kKeyRows ? column : row, kKeyRows ? row : column);
      Tile::put(weights, kWeightsOnly ? s : d);
      Tile::accumulate(weights, staged_values, d0, kWeightsOnly ? value_width : width, summed_step, column_at(summed),
                       total);
    }
  }

  const long long out_width = kWeightsOnly ? value_width : width;
  const A factor = (kWeightsOnly ? A(1) : A(rule.scale)) * A(whole(rule, b));
  T* first = out + out_strides.at(b, row_head, kKeyRows ? sequence.k_first : sequence.q_first);
#pragma unroll
  for (int r = 0; r < P; ++r) {
    const long long row = row0 + Tile::row() * P + r;
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      const long long at = d0 + Tile::feature(c);
      if (row >= rows || at >= out_width) continue;
      first[row * out_strides.row + at * out_strides.column] = narrow<T>(total[r][c] * factor);
    }
  }
}
