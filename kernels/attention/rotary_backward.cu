// The gradients of the rotary embedding (rotary.cu): that of x turns back, by -sin (kTurned); those of the tables are
// sums over all heads that share a row of them, of ga a + gb b for cos and gb a - ga b for sin. Alone, that of x is
// rotary.cu's.
//
// Layout:  x of any order of batch, heads and sequence, its features running fastest. A column is kPairs pairs (or a
//          vector of those features that do not turn) of one row of the tables; kTogether threads of a block go through
//          `chunk` of the `rows` rows of x that it serves, every kTogether-th each, kBatch of them under way. Pairs lie
//          half the turning width apart, or side by side (kInterleaved).
// Needs:   every row of x and of the tables aligned to the vectors (kWide: pairs that lie side by side are moved as one
//          vector).
// Bound:   memory: g and x read once, the output written once; the tables from L2, once per thread and `chunk`. The
//          sums of a thread are added up in the order of the rows, those of a column in that of its threads; with
//          several chunks they go to `parts`, (chunk, table row, pair), for sum_parts.cu.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/overlap.cuh"
#include "attention/pairs.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Cosine = float;
  using Sine = float;
  static constexpr bool kInterleaved = false;
  static constexpr bool kWide = true;
  static constexpr bool kTurned = true;
  static constexpr bool kParts = false;
  static constexpr bool kLong = false;
  static constexpr int kPairs = 4;
  static constexpr int kBatch = 4;
  static constexpr int kTogether = 4;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 4;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* x;
  Config::Cosine* grad_cosines;
  Config::Sine* grad_sines;
  dnnarray::arithmetic_t<Config::Element>* cosine_parts;
  dnnarray::arithmetic_t<Config::Element>* sine_parts;
  long long table_rows;
  long long pairs;
  long long turning;
  long long items;
  long long by_items;
  long long sequence;
  long long by_sequence;
  long long own_tables;
  long long heads;
  long long by_heads;
  long long rows;
  long long chunk;
  long long batch_stride;
  long long head_stride;
  long long row_stride;
  long long step;
  long long heads_on;
};
#define DNNARRAY_ENTRY rotary_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int N = Config::kPairs, kBatch = Config::kBatch, kTogether = Config::kTogether,
              kColumns = Config::kThreads / kTogether;
constexpr int kCopied = !Config::kInterleaved ? N : Config::kWide ? 2 * N : 1;  // features that one thread copies
constexpr bool kLong = Config::kLong;

using Mine = Pairs<T, N, Config::kInterleaved, Config::kWide>;
using Raw = Mine::Raw;

__device__ __forceinline__ void add_slopes(const Mine& g, const Mine& x, A (&cosine)[N], A (&sine)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    cosine[j] += g.first[j] * x.first[j] + g.second[j] * x.second[j];
    sine[j] += g.second[j] * x.first[j] - g.first[j] * x.second[j];
  }
}

// The rows of x that one row of the tables serves, in steps of kTogether: all heads, and all batch items where these
// share the tables.
struct Rows {
  long long at, head;
  long long step, heads_on, heads,
      turn;  // how far a step leads; `turn` leads from behind the last head of a batch item to the first of the next

  __device__ __forceinline__ void next() {
    at += step;
    if ((head += heads_on) >= heads) head -= heads, at += turn;
  }
};

struct Arrays {
  const T *g, *x;
  T* y;
};

// Turn kCount rows, whose loads are all under way before the first is used: no branch comes between them, and g and x
// are not `__restrict__`, since ptxas puts loads by the non-coherent cache off until behind the stores of the row
// before.
template <int kCount>
__device__ __forceinline__ void turn_rows(const Arrays& arrays, Rows& rows, long long half, const A (&cosine)[N],
                                          const A (&sine)[N], A (&cosine_sum)[N], A (&sine_sum)[N]) {
  Raw raw_g[kCount], raw_x[kCount];
  long long at[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k, rows.next()) {
    at[k] = rows.at;
    raw_g[k] = Mine::load_raw(arrays.g + at[k], half);
    raw_x[k] = Mine::load_raw(arrays.x + at[k], half);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const Mine wide(raw_g[k]);
    add_slopes(wide, Mine(raw_x[k]), cosine_sum, sine_sum);
    if constexpr (Config::kTurned) Mine::store_raw(arrays.y + at[k], half, wide.turned(cosine, sine));
  }
}

// The sums of the threads that share a column, in their order; a null result is not wanted. `table` is where the column
// stands in the tables, negative where it has no sums.
template <typename C, typename S>
__device__ __forceinline__ void store_sums(C* cosines, S* sines, long long table, const A (&cosine)[N],
                                           const A (&sine)[N]) {
  constexpr int kSums = 2 * N, kPitch = Config::kThreads + kColumns;
  __shared__ A smem[kSums][kPitch];
  __shared__ long long smem_table[kColumns];
#pragma unroll
  for (int j = 0; j < N; ++j) smem[j][threadIdx.x] = cosine[j], smem[N + j][threadIdx.x] = sine[j];
  if (threadIdx.x < kColumns) smem_table[threadIdx.x] = table;
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * kColumns; i += Config::kThreads) {
    const int j = i / kColumns, column = i % kColumns;
    if (smem_table[column] < 0) continue;
    A sum = smem[j][column];
#pragma unroll
    for (int k = 1; k < kTogether; ++k) sum += smem[j][k * kColumns + column];
    const long long at = smem_table[column] + j % N;
    if (j < N && cosines) cosines[at] = narrow<C>(arithmetic_t<C>(sum));
    if (j >= N && sines) sines[at] = narrow<S>(arithmetic_t<S>(sum));
  }
}

// `items` threads of a row of x, of which `turning` turn; `sequence` table rows belong to a batch item where each has
// tables of its own (`own_tables`); by_* divide by the number before them. A step leads to the row of x kTogether
// further on.
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : Config::kBlocks)
    DNNARRAY_ENTRY(const Config::Cosine* __restrict__ cosines, const Config::Sine* __restrict__ sines,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  const T *grad = a.grad, *x = a.x;
  Config::Cosine* grad_cosines = a.grad_cosines;
  Config::Sine* grad_sines = a.grad_sines;
  A *cosine_parts = a.cosine_parts, *sine_parts = a.sine_parts;
  const long long table_rows = a.table_rows, pairs = a.pairs, turning = a.turning, items = a.items,
                  by_items = a.by_items, sequence = a.sequence, by_sequence = a.by_sequence, own_tables = a.own_tables,
                  heads = a.heads, by_heads = a.by_heads, rows = a.rows, chunk = a.chunk, batch_stride = a.batch_stride,
                  head_stride = a.head_stride, row_stride = a.row_stride, step = a.step, heads_on = a.heads_on;
  let_next_kernel_begin();
  const Divided column =
      split_index<kLong>(static_cast<long long>(blockIdx.x) * kColumns + threadIdx.x % kColumns, items, by_items);
  const long long table_row = column.quotient, item = column.remainder;
  const bool there = table_row < table_rows, turns = there && item < turning;
  const Divided position = split_index<kLong>(table_row, sequence, by_sequence);
  const long long begin = blockIdx.y * chunk + threadIdx.x / kColumns, end = min(blockIdx.y * chunk + chunk, rows);
  const Divided first = split_index<kLong>(begin, heads, by_heads);
  const long long feature = turns ? item * N * Mine::kStep : 2 * pairs + (item - turning) * kCopied;
  const int count = there && begin < end ? static_cast<int>((end - begin + kTogether - 1) / kTogether) : 0;
  const long long item_of_x = own_tables ? position.quotient : first.quotient;
  Rows mine{position.remainder * row_stride + item_of_x * batch_stride + first.remainder * head_stride + feature,
            first.remainder,
            step,
            heads_on,
            heads,
            batch_stride - heads * head_stride};
  A cosine[N], sine[N], cosine_sum[N] = {}, sine_sum[N] = {};
  const long long table = table_row * pairs + item * N, part = blockIdx.y * table_rows * pairs + table;
  if (turns) {
    load_table(cosines + table, cosine);
    load_table(sines + table, sine);
#pragma unroll
    for (int j = 0; j < N; ++j) sine[j] = -sine[j];
    int row = 0;
    for (; row + kBatch <= count; row += kBatch)
      turn_rows<kBatch>({grad, x, y}, mine, pairs, cosine, sine, cosine_sum, sine_sum);
    for (; row < count; ++row) turn_rows<1>({grad, x, y}, mine, pairs, cosine, sine, cosine_sum, sine_sum);
  } else if constexpr (Config::kTurned) {
    for (int row = 0; row < count; ++row, mine.next()) store(y + mine.at, load<T, kCopied>(grad + mine.at));
  }
  if constexpr (Config::kParts) {
    store_sums(cosine_parts, sine_parts, turns ? part : -1, cosine_sum, sine_sum);
  } else {
    store_sums(grad_cosines, grad_sines, turns ? table : -1, cosine_sum, sine_sum);
  }
}
