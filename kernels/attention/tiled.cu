// Attention forward by the online softmax (Milakov and Gimelshein 2018; Dao 2022) on the ordinary arithmetic units:
//   y[i] = sum_j exp(s[i, j] - lse[i]) v[j],  lse[i] = log(exp(sink) + sum_j exp(s[i, j])),
// where s = scale q.k, capped, with ALiBi, bias and masks. Never more than one tile of scores exists.
//
// Layout:  any strides; sequences dense, packed one behind another, or keys in the blocks of a cache (kPaged). A block of 256 threads owns a
//          tile of queries of one head and kValues features of the result, and walks over the keys that these queries see.
// Needs:   kVector features side by side in aligned rows (1 where they are not). Every option of the operation.
// Bound:   arithmetic: 2 (D + D_v) multiplications and additions for each score.

#include "dnnarray/attention.cuh"
#include "dnnarray/attention_tiles.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Output = float;
  static constexpr bool kPaged = false;
  using Given = dnnarray::Given<true, true, true>;
  static constexpr int kPatch = 4;
  static constexpr int kDepth = 32;
  static constexpr int kValues = 64;
  static constexpr int kVector = 4;
};
#define DNNARRAY_ENTRY attention_tiled_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using O = Config::Output;
using Tile = Tiles<T, Config::kPatch, Config::kDepth, Config::kValues, Config::kVector>;
constexpr int P = Tile::kPatch;

// The rows of a thread: the largest score, the sum of exp(score - largest), the weighted values.
struct Rows {
  A top[P], sum[P], total[P][Tile::kOwn];

  __device__ __forceinline__ Rows(A sink, const Sequence& sequence, long long i) {
#pragma unroll
    for (int r = 0; r < P; ++r) {
      top[r] = i + r < sequence.q_end ? sink : -infinity(A(0));
      sum[r] = top[r] == -infinity(A(0)) ? 0 : 1;
#pragma unroll
      for (int c = 0; c < Tile::kOwn; ++c) total[r][c] = 0;
    }
  }

  // Scores become weights; what was summed so far shrinks where a larger score appears.
  __device__ __forceinline__ void absorb(A (&s)[P][P]) {
#pragma unroll
    for (int r = 0; r < P; ++r) {
      A higher = s[r][0];
#pragma unroll
      for (int c = 1; c < P; ++c) higher = Max()(higher, s[r][c]);
      higher = Max()(top[r], warp_max<kSide>(higher));
      const A ground = higher == -infinity(A(0)) ? A(0) : higher;
      A part = 0;
#pragma unroll
      for (int c = 0; c < P; ++c) part += s[r][c] = Precise::exp(s[r][c] - ground);
      const A shrink = Precise::exp(top[r] - ground);
      sum[r] = sum[r] * shrink + warp_sum<kSide>(part);
      top[r] = higher;
#pragma unroll
      for (int c = 0; c < Tile::kOwn; ++c) total[r][c] *= shrink;
    }
  }
};

__device__ __forceinline__ void drop(const Head<T>& head, long long i, long long j, A (&s)[P][P]) {
#pragma unroll
  for (int r = 0; r < P; ++r) {
    bool kept[P];
    head.keep<P>(i + r, j, kept);
#pragma unroll
    for (int c = 0; c < P; ++c) s[r][c] = kept[c] ? s[r][c] : A(0);
  }
}

extern "C" __global__ void __launch_bounds__(kTileThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, O* __restrict__ y, A* __restrict__ lse,
                   long long tiles, long long slices, long long width, long long value_width, long long lse_batch, long long lse_head,
                   DNNARRAY_STRIDES(q), DNNARRAY_STRIDES(k), DNNARRAY_STRIDES(v), DNNARRAY_STRIDES(y), const void* table,
                   long long table_kind, long long table_width, long long page, long long page_count, DNNARRAY_EXTRA, DNNARRAY_RULE) {
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  A *staged_q = reinterpret_cast<A*>(dynamic_shared), *staged_k = staged_q + Tile::kStaged, *weights = staged_k + Tile::kStaged;
  A* staged_v = weights + Tile::kWeights;
  const Rule rule = Config::Given::rule(DNNARRAY_RULE_VALUES);
  const Extra extra = Config::Given::extra(DNNARRAY_EXTRA_VALUES);
  const Divided by_slice = divide_index(blockIdx.x, slices), by_tile = divide_index(by_slice.quotient, tiles);
  const Divided by_head = divide_index(by_tile.quotient, heads);
  const long long b = by_head.quotient, h = by_head.remainder, i0 = (tiles - 1 - by_tile.remainder) * Tile::kTile;
  const long long d0 = by_slice.remainder * Tile::kValues;
  const Sequence sequence(rule, b);
  if (i0 >= sequence.queries) return;
  const Head<T> head(rule, extra, b, h);
  const Pages pages = {table, table_kind, table_width, page, page_count};
  const T* first_q = q + b * q_batch + h * q_head + (sequence.q_first + i0) * q_row;
  const T* first_k = k + (Config::kPaged ? 0 : b * k_batch + sequence.k_first * k_row) + h / group * k_head;
  const T* first_v = v + (Config::kPaged ? 0 : b * v_batch + sequence.k_first * v_row) + h / group * v_head;
  bool missing = false;
  const auto key_row = [&](const T* first, long long j, long long step, long long of_page) -> const T* {
    if (j >= sequence.k_end) return nullptr;
    if constexpr (Config::kPaged) {
      const long long block = pages.page(b, j);
      missing = missing || block < 0;
      return block < 0 ? nullptr : first + block * of_page + j % page * step;
    }
    return first + j * step;
  };

  const long long i = i0 + Tile::row() * P;
  Rows mine(sinks ? parameter_at<T>(sinks, sinks_wide, h) : -infinity(A(0)), sequence, i);
  long long begin, end;
  sequence.keys_of(i0, i0 + Tile::kTile, begin, end);
  for (long long j0 = begin; j0 < end; j0 += Tile::kTile) {
    A s[P][P];
    Tile::product(
        staged_q, staged_k, width, q_column, [&](int r) { return i0 + r < sequence.q_end ? first_q + r * q_row : nullptr; }, k_column,
        [&](int r) { return key_row(first_k, j0 + r, k_row, k_batch); }, s);
    const long long j = j0 + Tile::column() * P;
#pragma unroll
    for (int r = 0; r < P; ++r)
#pragma unroll
      for (int c = 0; c < P; ++c) {
        A bend;
        s[r][c] = head.score(s[r][c], sequence, i + r, j + c, bend);
      }
    mine.absorb(s);
    if (rule.threshold) drop(head, i, j, s);
    Tile::put(weights, s);
    Tile::accumulate(weights, staged_v, d0, value_width, v_column, [&](int r) { return key_row(first_v, j0 + r, v_row, v_batch); }, mine.total);
  }

  bool whole = sound(rule, b);
  if constexpr (Config::kPaged) whole = !__syncthreads_or(missing);
#pragma unroll
  for (int r = 0; r < P; ++r) {
    if (i + r >= sequence.queries) continue;
    if (!whole) mine.sum[r] = quiet_nan(A(0));
    const A scaled = A(keep_scale) / (mine.sum[r] == 0 ? A(1) : mine.sum[r]);
    O* p = y + b * y_batch + h * y_head + (sequence.q_first + i + r) * y_row;
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      const long long d = d0 + Tile::feature(c);
      if (d < value_width) p[d * y_column] = narrow<O>(arithmetic_t<O>(mine.total[r][c] * scaled));
    }
    if (lse && d0 == 0 && Tile::column() == 0) {
      lse[b * lse_batch + h * lse_head + sequence.q_first + i + r] = mine.top[r] + Precise::log(mine.sum[r]);
    }
  }
}
