// Softmax, log-softmax and softmin along an axis that does not run fastest, and their gradients; the formulas are those
// of rows.cu.
//
// Layout:  outer x extent x inner, dense. A block owns kColumns vectors of inner positions for one outer index; its
//          kThreads / kColumns rows of threads share the extent, and each goes over its part twice: for the maximum and
//          the sums, then for the results. A part that is one batch of loads stays in registers.
// Needs:   `inner` is a multiple of kVector; pointers are aligned to kVector elements.
// Bound:   Memory: each input is read once, the output is written once, as long as the second reading hits a cache.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"
#include "softmax/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLogarithm = false;
  static constexpr bool kNegative = false;
  static constexpr bool kGradient = false;
  static constexpr bool kSaved = false;
  static constexpr int kColumns = 32;
  static constexpr int kBatch = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long extent;
  long long inner;
};
#define DNNARRAY_ENTRY softmax_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using M = math_t<T>;
constexpr int V = Config::kVector, kBatch = Config::kBatch, kColumns = Config::kColumns,
              kRows = Config::kThreads / kColumns;
static constexpr A kSign = Config::kNegative && !Config::kSaved ? A(-1) : A(1);  // of x

// Which of them the formula needs: the maximum and the sum, the sum of g exp(x), the sum of g or of g y.
constexpr bool kOnline = !Config::kSaved, kDot = kOnline && Config::kGradient && !Config::kLogarithm,
               kPlain = Config::kGradient && !kDot;

// The statistics of one position of inner: `plain` is the sum of g y from the saved y, or for the logarithm the sum of
// g.
struct Column {
  Online<A, M> online;
  A plain = 0;

  __device__ __forceinline__ void take(const A (&x)[kBatch], const A (&g)[kBatch]) {
    if constexpr (kOnline) online.template add<kDot>(x, g);
    if constexpr (kPlain) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) plain += Config::kLogarithm ? g[k] : g[k] * x[k];
    }
  }

  __device__ __forceinline__ Statistics<Config, A, M> statistics() const {
    const A scale = A(1) / online.sum;
    return {online.largest, scale, M::log(online.sum), kDot ? online.dot * scale : plain};
  }
};

// The statistics that the rows of threads have found, which are brought together in a fixed order.
struct Shared {
  A largest[kRows][kColumns * V], sum[kRows][kColumns * V], dot[kRows][kColumns * V], plain[kRows][kColumns * V];

  __device__ __forceinline__ void write(const Column (&columns)[V], int row, int first) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kOnline) largest[row][first + j] = columns[j].online.largest;
      if constexpr (kOnline) sum[row][first + j] = columns[j].online.sum;
      if constexpr (kDot) dot[row][first + j] = columns[j].online.dot;
      if constexpr (kPlain) plain[row][first + j] = columns[j].plain;
    }
  }

  __device__ __forceinline__ void merge(Column (&columns)[V], int row, int first) const {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kOnline)
        columns[j].online.merge(largest[row][first + j], sum[row][first + j], kDot ? dot[row][first + j] : A(0));
      if constexpr (kPlain) columns[j].plain += plain[row][first + j];
    }
  }

  // All threads of the block take part, and each leaves with the statistics of its whole columns.
  __device__ __forceinline__ void combine(Column (&columns)[V], int row, int first) {
    write(columns, row, first);
    __syncthreads();
#pragma unroll
    for (int half = kRows / 2; half > 0; half /= 2) {
      if (row < half) {
        merge(columns, row + half, first);
        write(columns, row, first);
      }
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (kOnline) columns[j].online.largest = largest[0][first + j];
      if constexpr (kOnline) columns[j].online.sum = sum[0][first + j];
      if constexpr (kDot) columns[j].online.dot = dot[0][first + j];
      if constexpr (kPlain) columns[j].plain = plain[0][first + j];
    }
  }
};

struct Batch {
  A at[V][kBatch];

  __device__ __forceinline__ void read(const T* p, long long first, long long extent, long long inner, A sign,
                                       A nothing) {
    Vec<T, V> reg[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k * kRows < extent) reg[k] = load<T, V>(p + (first + k * kRows) * inner);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int j = 0; j < V; ++j) at[j][k] = first + k * kRows < extent ? sign * widen(reg[k].at[j]) : nothing;
    }
  }
};

// `x` is the saved result with kSaved; `grad` is null where there is no gradient.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  __shared__ Shared shared;
  const long long extent = a.extent, inner = a.inner;
  const long long tiles = (inner + kColumns * V - 1) / (kColumns * V);
  const Divided block = divide_index(blockIdx.x, tiles);
  const int column = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const long long position = (block.remainder * kColumns + column) * V,
                  start = block.quotient * extent * inner + position;
  const long long end = position < inner ? extent : 0;  // a thread beyond the last position has nothing to do
  const A nothing = Config::kSaved ? A(0) : -infinity(A(0));

  Column columns[V];
  Batch batch_x, batch_g;
  for (long long n = row; n < end; n += kBatch * kRows) {
    batch_x.read(x + start, n, end, inner, kSign, nothing);
    if constexpr (Config::kGradient) batch_g.read(grad + start, n, end, inner, A(1), A(0));
#pragma unroll
    for (int j = 0; j < V; ++j) columns[j].take(batch_x.at[j], batch_g.at[j]);
  }
  shared.combine(columns, row, column * V);

  Statistics<Config, A, M> final[V];
#pragma unroll
  for (int j = 0; j < V; ++j) final[j] = columns[j].statistics();
  for (long long n = row; n < end; n += kBatch * kRows) {
    if (end > kBatch * kRows) {  // else the one batch is still there
      batch_x.read(x + start, n, end, inner, kSign, nothing);
      if constexpr (Config::kGradient) batch_g.read(grad + start, n, end, inner, A(1), A(0));
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      Vec<T, V> reg;
#pragma unroll
      for (int j = 0; j < V; ++j) reg.at[j] = narrow<T>(final[j].result(batch_g.at[j][k], batch_x.at[j][k]));
      if (n + k * kRows < end) store(out + start + (n + k * kRows) * inner, reg);
    }
  }
}
