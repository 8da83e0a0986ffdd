// Softmax, log-softmax and softmin of rows of any length, and their gradients; the formulas are those of rows.cu.
//
// Layout:  rows x extent, dense; the extent runs fastest. A block owns a row and goes over it twice: first for the
//          maximum and the sums, then backwards for the results. The first `cached` vectors are kept in shared memory;
//          the others come from the L2 again. A row that does not begin at a multiple of kVector elements has up to
//          kVector - 1 single elements before its vectors, and any row has as many behind them.
// Needs:   Pointers are aligned to kVector elements; `cached` vectors of each array fit into shared memory.
// Bound:   Memory: each input is read once, the output is written once, as long as the second reading hits a cache.

#include "dnnarray/core/vec.cuh"
#include "softmax/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLogarithm = false;
  static constexpr bool kNegative = false;
  static constexpr bool kGradient = false;
  static constexpr bool kSaved = false;
  static constexpr int kBatch = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 512;
};
struct Arguments {
  long long extent;
  int cached;
};
#define DNNARRAY_ENTRY softmax_long_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using M = math_t<T>;
using Found = Statistics<Config, A, M>;
using Packed = Vec<T, Config::kVector>;
constexpr int V = Config::kVector, kBatch = Config::kBatch, kThreads = Config::kThreads;
static constexpr A kSign = Config::kNegative && !Config::kSaved ? A(-1) : A(1);  // of x

extern __shared__ __align__(16) unsigned char memory[];

// The first pass: N elements of x and g.
template <int N>
__device__ __forceinline__ void take(Online<A, M>& online, A& plain, const A (&x)[N], const A (&g)[N]) {
  if constexpr (!Config::kSaved) online.template add<Config::kGradient && !Config::kLogarithm>(x, g);
  if constexpr (Config::kGradient && (Config::kSaved || Config::kLogarithm)) {
#pragma unroll
    for (int j = 0; j < N; ++j) plain += Config::kLogarithm ? g[j] : g[j] * x[j];
  }
}

__device__ __forceinline__ Found combine(const Online<A, M>& own, A plain) {
  __shared__ A shared[2 * kThreads / kWarp];
  Found s = {};
  if constexpr (!Config::kSaved) {
    s.largest = block_reduce<kThreads>(own.largest, Max(), shared);
    const A factor = M::exp(own.largest - Online<A, M>::shift_of(s.largest));
    A sum = own.sum * factor, dot = own.dot * factor;
    block_reduce<kThreads>(sum, Sum(), dot, Sum(), shared);
    s.scale = A(1) / sum;
    s.log_sum = M::log(sum);
    s.dot = dot * s.scale;
  }
  if constexpr (Config::kGradient && (Config::kSaved || Config::kLogarithm))
    s.dot = block_reduce<kThreads>(plain, Sum(), shared);
  return s;
}

// kBatch vectors, kThreads apart, from vector `first` on; what lies past the end is neutral.
struct Batch {
  A at[kBatch * V];

  template <bool kFromCache>
  __device__ __forceinline__ void read(const T* p, Packed* cache, long long first, long long vectors, int cached,
                                       A sign, A nothing) {
    Packed reg[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const long long i = first + k * kThreads;
      if (kFromCache && i < cached) {
        reg[k] = cache[i];
      } else if (i < vectors) {
        reg[k] = load<T, V>(p + i * V);
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const long long i = first + k * kThreads;
      if (!kFromCache && i < cached) cache[i] = reg[k];
#pragma unroll
      for (int j = 0; j < V; ++j) at[k * V + j] = i < vectors ? sign * widen(reg[k].at[j]) : nothing;
    }
  }
};

// `x` is the saved result with kSaved; `grad` is null where there is no gradient.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const long long extent = a.extent;
  const int cached = a.cached;
  const long long start = static_cast<long long>(blockIdx.x) * extent;
  const int head = static_cast<int>(start % V == 0 ? 0 : V - start % V);
  const long long before = head < extent ? head : extent, vectors = (extent - before) / V;
  const int tail = static_cast<int>(extent - before - vectors * V);
  grad += start;
  x += start;
  out += start;
  Packed* cache_x = reinterpret_cast<Packed*>(memory);
  Packed* cache_g = cache_x + cached;
  const A nothing = Config::kSaved ? A(0) : -infinity(A(0));
  const bool single = threadIdx.x < before + tail;
  const long long edge = threadIdx.x < before ? threadIdx.x : threadIdx.x + vectors * V;

  Online<A, M> online;
  A plain = 0;
  Batch batch_x, batch_g;
  for (long long i = threadIdx.x; i < vectors; i += kBatch * kThreads) {
    batch_x.read<false>(x + before, cache_x, i, vectors, cached, kSign, nothing);
    if constexpr (Config::kGradient) batch_g.read<false>(grad + before, cache_g, i, vectors, cached, A(1), A(0));
    take(online, plain, batch_x.at, batch_g.at);
  }
  const A edge_x[1] = {single ? kSign * widen(x[edge]) : nothing},
          edge_g[1] = {Config::kGradient && single ? widen(grad[edge]) : A(0)};
  take(online, plain, edge_x, edge_g);

  const Found s = combine(online, plain);
  const long long steps = (vectors + kBatch * kThreads - 1) / (kBatch * kThreads);
  for (long long step = steps - 1; step >= 0; --step) {
    const long long first = step * kBatch * kThreads + threadIdx.x;
    batch_x.read<true>(x + before, cache_x, first, vectors, cached, kSign, nothing);
    if constexpr (Config::kGradient) batch_g.read<true>(grad + before, cache_g, first, vectors, cached, A(1), A(0));
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      Packed reg;
#pragma unroll
      for (int j = 0; j < V; ++j) reg.at[j] = narrow<T>(s.result(batch_g.at[k * V + j], batch_x.at[k * V + j]));
      if (first + k * kThreads < vectors) store(out + before + (first + k * kThreads) * V, reg);
    }
  }
  if (single) out[edge] = narrow<T>(s.result(edge_g[0], edge_x[0]));
}
