// Softmax, log-softmax and softmin of long rows that stay on the chip, and their gradients; the formulas are those of
// rows.cu.
//
// Layout:  rows x extent, dense; the extent runs fastest. A row belongs to a cluster of kBlocks blocks: thread t of all
//          their threads owns the vectors t, t + kStride, ..., at most `count`. The vectors are copied to shared
//          memory, to a place where only their own thread looks, and every copy is under way before the first is used.
//          Maximum and sums are exchanged once: each warp sends its own to all blocks. A row that does not begin at a
//          multiple of 16 bytes has up to V - 1 single elements before its vectors, and any row has as many behind
//          them; the first threads own one each.
// Needs:   Pointers are aligned to 16 bytes; `count` vectors of each array and thread fit into shared memory; kBlocks >
//          1 needs sm_90; the elements are not double.
// Bound:   Memory: each input is read once, the output is written once. With the rows in registers instead of shared
//          memory it was 10 to 40% slower: fewer threads fit a multiprocessor, and loads into registers occupy the
//          threads, which cp.async does not.

#include "dnnarray/core/cluster.cuh"
#include "dnnarray/core/slice.cuh"
#include "softmax/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLogarithm = false;
  static constexpr bool kNegative = false;
  static constexpr bool kGradient = false;
  static constexpr bool kSaved = false;
  static constexpr int kBlocks = 1;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* x;
  Config::Element* out;
  long long extent;
  long long count;
};
#define DNNARRAY_ENTRY softmax_cluster_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = math_t<T>;
using Found = Statistics<Config, float, M>;
constexpr int V = 16 / sizeof(T), kThreads = Config::kThreads, kBlocks = Config::kBlocks, kStride = kBlocks * kThreads;
constexpr float kSign = Config::kNegative && !Config::kSaved ? -1.0f : 1.0f;  // of x
constexpr bool kDot =
    Config::kGradient && !Config::kSaved && !Config::kLogarithm;  // the sum of g exp(x), not that of g or g y
constexpr int kOfMaximum = Config::kSaved ? 0 : 2;
using Table = Gathered<kBlocks, kThreads, kOfMaximum + Config::kGradient>;

extern __shared__ __align__(16) unsigned char memory[];

struct Sums {
  float shift, sum = 0, other = 0;

  __device__ __forceinline__ void take(float g, float x) {
    if constexpr (!Config::kSaved) {
      const float e = M::exp(x - shift);
      sum += e;
      if constexpr (kDot) other += g * e;
    }
    if constexpr (Config::kGradient && !kDot) other += Config::kLogarithm ? g : g * x;
  }
};

__device__ __forceinline__ Found combine(Table& table, float largest, const Sums& own, int rank) {
  float mine[kOfMaximum + Config::kGradient];
  if constexpr (!Config::kSaved) mine[0] = largest, mine[1] = warp_sum(own.sum);
  if constexpr (Config::kGradient) mine[kOfMaximum] = warp_sum(own.other);
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  table.put(mine, rank);
  cluster_barrier<kBlocks>();
  Found s = {};
  const float* of = table.at[0];
  float shift = 0;
  if constexpr (!Config::kSaved) {
    s.largest = Table::reduce(Max(), [&](int i) { return of[i]; });
    shift = Online<float, M>::shift_of(s.largest);
    const float sum = Table::reduce(Sum(), [&](int i) { return table.at[1][i] * M::exp(of[i] - shift); });
    s.scale = 1.0f / sum;
    s.log_sum = M::log(sum);
  }
  if constexpr (Config::kGradient) {
    const float* other = table.at[kOfMaximum];
    s.dot = Table::reduce(Sum(), [&](int i) { return kDot ? other[i] * M::exp(of[i] - shift) : other[i]; });
    if constexpr (kDot) s.dot *= s.scale;
  }
  return s;
}

// `x` is the saved result with kSaved; `grad` is null where there is no gradient.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  __shared__ Table table;
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, own = rank * kThreads + threadIdx.x;
  const long long extent = a.extent, start = blockIdx.x / kBlocks * extent;
  const int head = static_cast<int>((V - start % V) % V), before = head < extent ? head : static_cast<int>(extent);
  const int vectors = static_cast<int>(extent - before) / V, tail = static_cast<int>(extent) - before - vectors * V;
  const float nothing = Config::kSaved ? 0.0f : kSign * -infinity(0.0f);
  Words* const of_x = reinterpret_cast<Words*>(memory) + threadIdx.x;
  Words* const of_g = of_x + a.count * kThreads;
  const int mine = own < vectors ? (vectors - own + kStride - 1) / kStride : 0;
  const long long origin = start + before + own * V;
#pragma unroll 4
  for (int k = 0; k < mine; ++k) {
    cp_async_cg(of_x + k * kThreads, a.x + origin + k * (kStride * V));
    if constexpr (Config::kGradient) cp_async_cg(of_g + k * kThreads, a.grad + origin + k * (kStride * V));
  }
  const bool single = own < before + tail;
  const long long edge = start + (own < before ? own : own + vectors * static_cast<long long>(V));
  const float edge_x = kSign * (single ? widen(a.x[edge]) : nothing),
              edge_g = Config::kGradient && single ? widen(a.grad[edge]) : 0.0f;
  cp_async_commit_group();
  cp_async_wait_group<0>();

  float largest = edge_x;
  if constexpr (!Config::kSaved) {
#pragma unroll 4
    for (int k = 0; k < mine; ++k) {
      const Words wx = of_x[k * kThreads];
#pragma unroll
      for (int j = 0; j < V; ++j) largest = Max()(largest, kSign * element<T>(wx, j));
    }
    largest = warp_reduce(largest, Max());
  }
  Sums sums = {Online<float, M>::shift_of(largest)};
  sums.take(edge_g, edge_x);
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    const Words wx = of_x[k * kThreads], wg = Config::kGradient ? of_g[k * kThreads] : wx;
#pragma unroll
    for (int j = 0; j < V; ++j) sums.take(element<T>(wg, j), kSign * element<T>(wx, j));
  }
  const Found s = combine(table, largest, sums, rank);
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    const Words wx = of_x[k * kThreads], wg = Config::kGradient ? of_g[k * kThreads] : wx;
    float y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = s.result(element<T>(wg, j), kSign * element<T>(wx, j));
    store_words(a.out + origin + k * (kStride * V), words_of<T>(y));
  }
  if (single) a.out[edge] = narrow<T>(s.result(edge_g, edge_x));
}
