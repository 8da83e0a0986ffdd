// Attention forward by the online softmax (Milakov and Gimelshein 2018; Dao 2022) on the CUDA cores:
//   y[i] = sum_j exp(s[i, j] - lse[i]) v[j],  lse[i] = log(exp(sink) + sum_j exp(s[i, j])),
// where s = scale q.k, capped, with ALiBi, bias and masks. Never more than one tile of scores exists.
//
// Layout:  any strides; sequences dense, packed one behind another, or keys in the blocks of a cache (kPaged). A block
//          of 256 threads owns a tile of queries of one head and kValues features of the result, and walks over the
//          keys that these queries see.
// Needs:   kVector features side by side in aligned rows (1 where they are not). Every option of the operation.
// Bound:   arithmetic: 2 (D + D_v) multiplications and additions for each score.

#include "attention/rule.cuh"
#include "attention/tiles.cuh"

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
  long long slices;
  dnnarray::Extra extra;
};
#define DNNARRAY_ENTRY attention_tiled_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using O = Config::Output;
using Tile = Tiles<T, Config::kPatch, Config::kDepth, Config::kValues, Config::kVector>;
constexpr int P = Tile::kPatch;
constexpr bool kPaged = Config::kPaged;

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
    DNNARRAY_ENTRY(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, O* __restrict__ y,
                   A* __restrict__ lse, const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, width = a.width, value_width = a.value_width, lse_batch = a.lse_batch,
                  lse_head = a.lse_head, slices = a.slices;
  const Strides q_strides = a.q_strides, k_strides = a.k_strides, v_strides = a.v_strides, y_strides = a.y_strides;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  A *staged_q = reinterpret_cast<A*>(dynamic_shared), *staged_k = staged_q + Tile::kStaged,
    *weights = staged_k + Tile::kStaged;
  A* staged_v = weights + Tile::kWeights;
  const Rule rule = Config::Given::rule(a.rule);
  const Extra extra = Config::Given::extra(a.extra);
  const Divided by_slice = divide_index(blockIdx.x, slices), by_tile = divide_index(by_slice.quotient, tiles);
  const Divided by_head = divide_index(by_tile.quotient, rule.heads);
  const long long b = by_head.quotient, h = by_head.remainder, i0 = (tiles - 1 - by_tile.remainder) * Tile::kTile;
  const long long d0 = by_slice.remainder * Tile::kValues;
  const Sequence sequence(rule, b);
  if (i0 >= sequence.queries) return;
  const Head<T> head(rule, extra, b, h);
  const Pages pages = a.pages;
  const T* first_q = q + q_strides.at(b, h, sequence.q_first + i0);
  const long long key_head = h / rule.group;
  const T* first_k = k + (kPaged ? k_strides.at(0, key_head) : k_strides.at(b, key_head, sequence.k_first));
  const T* first_v = v + (kPaged ? v_strides.at(0, key_head) : v_strides.at(b, key_head, sequence.k_first));
  bool missing = false;
  const auto key_row = [&](const T* first, long long j, long long step, long long of_page) -> const T* {
    if (j >= sequence.k_end) return nullptr;
    if constexpr (kPaged) {
      const long long block = pages.page(b, j);
      missing = missing || block < 0;
      return block < 0 ? nullptr : first + block * of_page + j % pages.size * step;
    }
    return first + j * step;
  };

  const long long i = i0 + Tile::row() * P;
  Rows mine(rule.sinks ? parameter_at<T>(rule.sinks, rule.sinks_wide, h) : -infinity(A(0)), sequence, i);
  long long begin, end;
  sequence.keys_of(i0, i0 + Tile::kTile, begin, end);
  for (long long j0 = begin; j0 < end; j0 += Tile::kTile) {
    A s[P][P];
    Tile::product(
        staged_q, staged_k, width, q_strides.column,
        [&](int r) { return i0 + r < sequence.q_end ? first_q + r * q_strides.row : nullptr; }, k_strides.column,
        [&](int r) { return key_row(first_k, j0 + r, k_strides.row, k_strides.batch); }, s);
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
    const auto value_row = [&](int r) { return key_row(first_v, j0 + r, v_strides.row, v_strides.batch); };
    Tile::accumulate(weights, staged_v, d0, value_width, v_strides.column, value_row, mine.total);
  }

  bool whole = sound(rule, b);
  if constexpr (kPaged) whole = !__syncthreads_or(missing);
#pragma unroll
  for (int r = 0; r < P; ++r) {
    if (i + r >= sequence.queries) continue;
    if (!whole) mine.sum[r] = quiet_nan(A(0));
    const A scaled = A(rule.keep_scale) / (mine.sum[r] == 0 ? A(1) : mine.sum[r]);
    O* p = y + y_strides.at(b, h, sequence.q_first + i + r);
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      const long long d = d0 + Tile::feature(c);
      if (d < value_width) p[d * y_strides.column] = narrow<O>(arithmetic_t<O>(mine.total[r][c] * scaled));
    }
    if (lse && d0 == 0 && Tile::column() == 0) {
      lse[b * lse_batch + h * lse_head + sequence.q_first + i + r] = mine.top[r] + Precise::log(mine.sum[r]);
    }
  }
}
