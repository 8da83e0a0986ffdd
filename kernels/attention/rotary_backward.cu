// The gradient of the rotary embedding (rotary.cu): that of x turns back, by -sin; those of the tables are sums over all heads that share a row of them, of
// ga a + gb b for cos and gb a - ga b for sin.
//
// Layout:  x of any order of batch, heads and sequence, its features running fastest. A thread owns kPairs pairs (or a vector of those
//          features that do not turn) of one row of the tables, and goes through `chunk` of the `rows` rows of x that the row serves.
//          Pairs lie half the turning width apart, or side by side (kInterleaved).
// Needs:   every row of x and of the tables aligned to the vectors (kWide: pairs that lie side by side are moved as one vector).
// Bound:   memory: g and x read once, the output written once; the tables from L2, once per `chunk` rows. The sums of one thread are
//          added up in the order of the rows; with several chunks they go to `parts`, (chunk, table row, pair), for sum_parts.cu.

#include "dnnarray/index.cuh"
#include "dnnarray/rotary.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Cosine = float;
  using Sine = float;
  static constexpr bool kInterleaved = false;
  static constexpr bool kWide = true;
  static constexpr bool kParts = false;
  static constexpr int kPairs = 4;
  static constexpr int kBatch = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY rotary_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int N = Config::kPairs, kBatch = Config::kBatch;
constexpr int kCopied = !Config::kInterleaved ? N : Config::kWide ? 2 * N : 1;  // features that one thread copies

using Mine = Pairs<T, N, Config::kInterleaved, Config::kWide>;
using Raw = Mine::Raw;

__device__ __forceinline__ void add_slopes(const Mine& g, const Mine& x, A (&cosine)[N], A (&sine)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    cosine[j] += g.first[j] * x.first[j] + g.second[j] * x.second[j];
    sine[j] += g.second[j] * x.first[j] - g.first[j] * x.second[j];
  }
}

// The rows of x that one row of the tables serves, one after the other: all heads, and all batch items where these share the tables.
struct Rows {
  long long at, head, heads, head_stride, turn;  // `turn` leads from behind the last head of a batch item to the first of the next

  __device__ __forceinline__ Rows(long long base, long long row, long long heads, long long head_stride, long long batch_stride)
      : heads(heads), head_stride(head_stride), turn(batch_stride - heads * head_stride) {
    const Divided d = divide_index(row, heads);
    head = d.remainder;
    at = base + d.quotient * batch_stride + head * head_stride;
  }
  __device__ __forceinline__ void next() {
    at += head_stride;
    if (++head == heads) head = 0, at += turn;
  }
};

// Turn `count` rows, kBatch of them in flight.
__device__ __forceinline__ void turn_rows(const T* __restrict__ g, const T* __restrict__ x, T* __restrict__ y, Rows rows, int count,
                                          long long half, const A (&cosine)[N], const A (&sine)[N], A (&cosine_sum)[N], A (&sine_sum)[N]) {
  for (int row = 0; row < count; row += kBatch) {
    Raw raw_g[kBatch], raw_x[kBatch];
    long long at[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k, rows.next()) {
      if (row + k >= count) continue;
      at[k] = rows.at;
      raw_g[k] = Mine::load_raw(g + at[k], half);
      raw_x[k] = Mine::load_raw(x + at[k], half);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (row + k >= count) continue;
      const Mine wide(raw_g[k]);
      add_slopes(wide, Mine(raw_x[k]), cosine_sum, sine_sum);
      Mine::store_raw(y + at[k], half, wide.turned(cosine, sine));
    }
  }
}

template <typename C>
__device__ __forceinline__ void store_sums(C* p, const A (&sums)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) p[j] = narrow<C>(arithmetic_t<C>(sums[j]));
}

// `sequence` table rows belong to a batch item where each has tables of its own (`own_tables`).
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ x, const Config::Cosine* __restrict__ cosines,
                   const Config::Sine* __restrict__ sines, T* __restrict__ y, Config::Cosine* grad_cosines, Config::Sine* grad_sines,
                   A* cosine_parts, A* sine_parts, long long column_blocks, long long table_rows, long long sequence, long long pairs,
                   long long width, long long own_tables, long long heads, long long rows, long long chunk, long long batch_stride,
                   long long head_stride, long long row_stride) {
  const Divided place = divide_index(blockIdx.x, column_blocks);
  const long long turning = pairs / N, items = turning + (width - 2 * pairs) / kCopied;
  const Divided column = divide_index(place.remainder * Config::kThreads + threadIdx.x, items);
  const long long table_row = column.quotient, item = column.remainder;
  if (table_row >= table_rows) return;
  const Divided position = divide_index(table_row, sequence);
  const long long begin = place.quotient * chunk, feature = item < turning ? item * N * Mine::kStep : 2 * pairs + (item - turning) * kCopied;
  const int count = static_cast<int>(begin + chunk < rows ? chunk : rows - begin);
  Rows mine(position.remainder * row_stride + (own_tables ? position.quotient * batch_stride : 0) + feature, begin, heads, head_stride, batch_stride);
  if (item >= turning) {
    for (int row = 0; row < count; ++row, mine.next()) store(y + mine.at, load<T, kCopied>(g + mine.at));
    return;
  }
  A cosine[N], sine[N], cosine_sum[N] = {}, sine_sum[N] = {};
  const long long table = table_row * pairs + item * N;
  load_table(cosines + table, cosine);
  load_table(sines + table, sine);
#pragma unroll
  for (int j = 0; j < N; ++j) sine[j] = -sine[j];
  turn_rows(g, x, y, mine, count, pairs, cosine, sine, cosine_sum, sine_sum);
  const long long part = place.quotient * table_rows * pairs + table;
  if constexpr (Config::kParts) {
    store_sums(cosine_parts + part, cosine_sum);
    store_sums(sine_parts + part, sine_sum);
  } else {
    store_sums(grad_cosines + table, cosine_sum);
    store_sums(grad_sines + table, sine_sum);
  }
}
