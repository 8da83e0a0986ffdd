// Softmax, log-softmax and softmin of rows that fit into registers, and their gradients:
//   softmax      y = exp(x - max) / sum        gradient  y (g - sum of g y)
//   log-softmax  y = x - max - log(sum)        gradient  g - exp(y) sum of g
//   softmin      the softmax of -x
//
// Layout:  rows x extent, dense; the extent runs fastest. kLanes threads own a row: thread l has its vectors l, l +
//          kLanes, ..., at most kCount.
// Needs:   The extent is a multiple of kVector and at most kLanes kCount kVector; pointers are aligned to kVector
//          elements.
// Bound:   Memory: each input is read once, the output is written once.

#include "dnnarray/core/math.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLogarithm = false;
  static constexpr bool kNegative = false;
  static constexpr bool kGradient = false;
  static constexpr bool kSaved = false;
  static constexpr int kLanes = 128;
  static constexpr int kCount = 8;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long extent;
};
#define DNNARRAY_ENTRY softmax_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using M = math_t<T>;
constexpr int V = Config::kVector, kCount = Config::kCount, kLanes = Config::kLanes;
static_assert(kLanes <= kWarp || kLanes == Config::kThreads, "a row over several warps has a block of its own");

// The type that a vector is moved by.
template <bool kWhole>
struct WordOf {
  using type = unsigned;
};
template <>
struct WordOf<false> {
  using type = T;
};

struct Row {
  A at[kCount][V];
};

// A vector where there is one, else all `filler`. Half types are filled and loaded as words: the compiler would merge
// each by itself and wait for it.
__device__ __forceinline__ Vec<T, V> load_or(const T* p, bool there, A filler) {
  using Word = WordOf<sizeof(T) * V % 4 == 0>::type;
  constexpr int kWords = sizeof(T) * V / sizeof(Word);
  Vec<T, V> y;
#pragma unroll
  for (int j = 0; j < V; ++j) y.at[j] = narrow<T>(filler);
  Vec<Word, kWords> words;
  memcpy(&words, &y, sizeof y);
  if (there) words = load<Word, kWords>(reinterpret_cast<const Word*>(p));
  memcpy(&y, &words, sizeof y);
  return y;
}

// A vector past the end is filled with `filler`.
__device__ __forceinline__ void load_row(const T* p, int lane, int vectors, A filler, Row& row) {
  Vec<T, V> reg[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k)
    reg[k] = load_or(p + static_cast<long long>(lane + k * kLanes) * V, lane + k * kLanes < vectors, filler);
#pragma unroll
  for (int k = 0; k < kCount; ++k) widen_all(row.at[k], reg[k]);
}

__device__ __forceinline__ void store_row(T* p, int lane, int vectors, const Row& row) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const Vec<T, V> reg = narrow_all<T, V>(row.at[k]);
    if (lane + k * kLanes < vectors) store(p + static_cast<long long>(lane + k * kLanes) * V, reg);
  }
}

template <typename Op>
__device__ __forceinline__ A reduce(A value, Op op, A* shared) {
  if constexpr (kLanes <= kWarp) {
    return warp_reduce<kLanes>(value, op);
  } else {
    return block_reduce<Config::kThreads>(value, op, shared);
  }
}

// Pairs are combined first, which waits less than one value after the other.
template <typename Op, typename F>
__device__ __forceinline__ A fold(Op op, F value) {
  A part[kCount * V];
#pragma unroll
  for (int i = 0; i < kCount * V; ++i) part[i] = value(i / V, i % V);
#pragma unroll
  for (int step = 1; step < kCount * V; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < kCount * V; i += 2 * step) part[i] = op(part[i], part[i + step]);
  }
  return part[0];
}

template <typename F>
__device__ __forceinline__ void assign(Row& row, F value) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int j = 0; j < V; ++j) row.at[k][j] = value(k, j);
  }
}

// The rows of x become rows of the result.
__device__ __forceinline__ void forward(Row& x, A* shared) {
  if constexpr (Config::kNegative) assign(x, [&](int k, int j) { return -x.at[k][j]; });
  const A largest = reduce(fold(Max(), [&](int k, int j) { return x.at[k][j]; }), Max(), shared);
  if constexpr (Config::kLogarithm) {
    const A part = fold(Sum(), [&](int k, int j) { return M::exp(x.at[k][j] - largest); });
    const A log_sum = M::log(reduce(part, Sum(), shared));
    assign(x, [&](int k, int j) { return x.at[k][j] - largest - log_sum; });
  } else {
    assign(x, [&](int k, int j) { return M::exp(x.at[k][j] - largest); });
    const A scale = reciprocal(reduce(fold(Sum(), [&](int k, int j) { return x.at[k][j]; }), Sum(), shared));
    assign(x, [&](int k, int j) { return x.at[k][j] * scale; });
  }
}

// The rows of g become rows of the gradient.
__device__ __forceinline__ void backward(Row& g, const Row& y, A* shared) {
  if constexpr (Config::kLogarithm) {
    const A sum = reduce(fold(Sum(), [&](int k, int j) { return g.at[k][j]; }), Sum(), shared);
    assign(g, [&](int k, int j) { return g.at[k][j] - M::exp(y.at[k][j]) * sum; });
  } else {
    const A sum = reduce(fold(Sum(), [&](int k, int j) { return g.at[k][j] * y.at[k][j]; }), Sum(), shared);
    assign(g, [&](int k, int j) { return (Config::kNegative ? sum - g.at[k][j] : g.at[k][j] - sum) * y.at[k][j]; });
  }
}

// `x` is the saved result with kSaved; `grad` is null where there is no gradient. A row past the last one is computed
// as the last one and not stored.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const long long rows = a.rows, extent = a.extent;
  __shared__ A shared[Config::kThreads / kWarp];
  begin_ahead();
  constexpr int kRows = Config::kThreads / kLanes;
  const int lane = threadIdx.x % kLanes, vectors = static_cast<int>(extent) / V;
  const long long own = static_cast<long long>(blockIdx.x) * kRows + threadIdx.x / kLanes,
                  row = own < rows ? own : rows - 1;
  const A nothing = Config::kSaved ? A(0) : Config::kNegative ? infinity(A(0)) : -infinity(A(0));
  x += row * extent, grad += row * extent;
  take_after_previous_kernel(x, grad);
  Row value;
  load_row(x, lane, vectors, nothing, value);
  if constexpr (Config::kGradient) {
    Row source;
    load_row(grad, lane, vectors, A(0), source);
    if constexpr (!Config::kSaved) forward(value, shared);
    backward(source, value, shared);
    if (own < rows) store_row(out + row * extent, lane, vectors, source);
  } else {
    forward(value, shared);
    if (own < rows) store_row(out + row * extent, lane, vectors, value);
  }
}
