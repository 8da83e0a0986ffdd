// Softmax, log-softmax and softmin along an axis that does not run fastest, where the columns stay on the chip, and
// their gradients; the formulas are those of rows.cu.
//
// Layout:  outer x extent x inner, dense. A cluster of kBlocks blocks owns kColumns vectors of inner positions for one
//          outer index; the kThreads / kColumns rows of threads of each block share the extent: row r takes r, r + all
//          rows, ... Every vector is copied to shared memory first, to a place where only its own thread looks. One row
//          of threads alone exchanges nothing; several bring their maxima and sums together over the lanes of a warp,
//          the warps, the blocks.
// Needs:   `inner` is a multiple of V; pointers are aligned to 16 bytes; `count` vectors of each array and thread fit
//          into shared memory; kBlocks > 1 needs sm_90; the elements are not double.
// Bound:   Memory: each input is read once, the output is written once.

#include "dnnarray/core/cluster.cuh"
#include "dnnarray/core/index.cuh"
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
  static constexpr int kColumns = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* x;
  Config::Element* out;
  long long extent;
  long long inner;
  long long count;
};
#define DNNARRAY_ENTRY softmax_cluster_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = math_t<T>;
constexpr int V = 16 / sizeof(T), kThreads = Config::kThreads, kBlocks = Config::kBlocks;
constexpr int kColumns = Config::kColumns, kRows = kThreads / kColumns, kWidth = kColumns * V,
              kWarps = kThreads / kWarp;
constexpr float kSign = Config::kNegative && !Config::kSaved ? -1.0f : 1.0f;  // of x
constexpr bool kOnline = !Config::kSaved, kDot = kOnline && Config::kGradient && !Config::kLogarithm,
               kPlain = Config::kGradient && !kDot;

extern __shared__ __align__(16) unsigned char memory[];

// The statistics of one position: the maximum, the sum of exp(x - maximum), and the sum of g exp(x - maximum), of g y
// or of g.
struct Found {
  float largest = -infinity(0.0f), sum = 0, other = 0;

  __device__ __forceinline__ void take(float g, float x) {
    if constexpr (kOnline) {
      const float e = M::exp(x - Online<float, M>::shift_of(largest));
      sum += e;
      if constexpr (kDot) other += g * e;
    }
    if constexpr (kPlain) other += Config::kLogarithm ? g : g * x;
  }
  // The same sums around a maximum that is larger.
  __device__ __forceinline__ void raise(float to) {
    if constexpr (!kOnline) return;
    const float factor = M::exp(largest - Online<float, M>::shift_of(to));
    largest = to;
    sum *= factor;
    if constexpr (kDot) other *= factor;
  }
};

// Finds the largest of the thread's `count` vectors at each position; half types are compared by two.
template <typename Half = T>
__device__ __forceinline__ void find_largest(Found (&found)[V], const Words* from, int count) {
  if constexpr (sizeof(Half) == 2) {
    unsigned tops[V / 2];
#pragma unroll
    for (int j = 0; j < V / 2; ++j) tops[j] = narrow<Half>(-infinity(0.0f)).bits * 0x10001u;
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Words wx = from[k * kThreads];
#pragma unroll
      for (int j = 0; j < V / 2; ++j)
        tops[j] = largest_pair(tops[j], Config::kNegative ? wx.at[j] ^ 0x80008000u : wx.at[j], Half());
    }
#pragma unroll
    for (int j = 0; j < V / 2; ++j) widen_pair(found[2 * j].largest, found[2 * j + 1].largest, tops[j], Half());
  } else {
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Words wx = from[k * kThreads];
#pragma unroll
      for (int j = 0; j < V; ++j) found[j].largest = Max()(found[j].largest, kSign * element<T>(wx, j));
    }
  }
}

// The statistics of each position of the block's width.
struct Table {
  float at[3][kWidth];

  __device__ __forceinline__ Found operator[](int position) const {
    return {at[0][position], at[1][position], at[2][position]};
  }
  __device__ __forceinline__ void put(int position, const Found& f) {
    at[0][position] = f.largest, at[1][position] = f.sum, at[2][position] = f.other;
  }
  __device__ __forceinline__ void put(int position, const Found& f, int block) {
    if constexpr (kOnline)
      store_remote(&at[0][position], block, f.largest), store_remote(&at[1][position], block, f.sum);
    if constexpr (Config::kGradient) store_remote(&at[2][position], block, f.other);
  }
};

// The statistics of a position over all N tables, taken in a fixed order.
template <int N>
__device__ __forceinline__ Found merged(const Table* tables, int position) {
  Found all;
#pragma unroll
  for (int i = 0; i < N; ++i) all.largest = Max()(all.largest, tables[i].at[0][position]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Found one = tables[i][position];
    one.raise(all.largest);
    all.sum += one.sum, all.other += one.other;
  }
  return all;
}

// Brings together what the rows of threads of all blocks have found; all threads take part.
__device__ __forceinline__ void combine(Found (&found)[V], int rank) {
  __shared__ Table warps[kWarps], blocks[kBlocks];
  const int column = threadIdx.x % kColumns * V, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float largest = found[j].largest;
#pragma unroll
    for (int lanes = kWarp / 2; lanes >= kColumns && kOnline; lanes /= 2)
      largest = Max()(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    found[j].raise(largest);
#pragma unroll
    for (int lanes = kWarp / 2; lanes >= kColumns; lanes /= 2) {
      if constexpr (kOnline) found[j].sum += __shfl_xor_sync(kAllLanes, found[j].sum, lanes);
      if constexpr (Config::kGradient) found[j].other += __shfl_xor_sync(kAllLanes, found[j].other, lanes);
    }
    if (threadIdx.x % kWarp < kColumns) warps[warp].put(column + j, found[j]);
  }
  __syncthreads();
  if constexpr (kBlocks > 1) {
    cluster_wait();  // every block is there
    for (int i = threadIdx.x; i < kWidth * kBlocks; i += kThreads)
      blocks[rank].put(i % kWidth, merged<kWarps>(warps, i % kWidth), i / kWidth);
    cluster_barrier<kBlocks>();
  } else {
    for (int i = threadIdx.x; i < kWidth; i += kThreads) blocks[0].put(i, merged<kWarps>(warps, i));
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < V; ++j) found[j] = merged<kBlocks>(blocks, column + j);
}

// What the results of a position need.
__device__ __forceinline__ Statistics<Config, float, M> final_of(const Found& f) {
  const float scale = 1.0f / f.sum;
  return {f.largest, scale, M::log(f.sum), kDot ? f.other * scale : f.other};
}

// `x` is the saved result with kSaved; `grad` is null where there is no gradient.
extern "C" __global__ void DNNARRAY_CLUSTER(kBlocks) __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const T *grad = a.grad, *x = a.x;
  T* out = a.out;
  const long long extent = a.extent, inner = a.inner, count = a.count;
  if constexpr (kBlocks > 1) cluster_arrive();
  const int rank = blockIdx.x % kBlocks, first = rank * kRows + threadIdx.x / kColumns;
  const Divided place = divide_index(blockIdx.x / kBlocks, (inner + kWidth - 1) / kWidth);
  const long long position = place.remainder * kWidth + threadIdx.x % kColumns * V,
                  start = place.quotient * extent * inner + position;
  const long long step = kBlocks * kRows * inner;
  // The thread has so many elements of each of its positions; beyond the last position it has none.
  const int mine = position < inner && first < extent
                       ? static_cast<int>((extent - first + kBlocks * kRows - 1) / (kBlocks * kRows))
                       : 0;
  Words* const of_x = reinterpret_cast<Words*>(memory) + threadIdx.x;
  Words* const of_g = of_x + count * kThreads;
  const long long origin = start + first * inner;
#pragma unroll 4
  for (int k = 0; k < mine; ++k) {
    cp_async_cg(of_x + k * kThreads, x + origin + k * step);
    if constexpr (Config::kGradient) cp_async_cg(of_g + k * kThreads, grad + origin + k * step);
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();

  Found found[V];
  if constexpr (kOnline) find_largest(found, of_x, mine);
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    const Words wx = of_x[k * kThreads], wg = Config::kGradient ? of_g[k * kThreads] : wx;
#pragma unroll
    for (int j = 0; j < V; ++j) found[j].take(element<T>(wg, j), kSign * element<T>(wx, j));
  }
  if constexpr (kRows * kBlocks > 1) combine(found, rank);
  Statistics<Config, float, M> final[V];
#pragma unroll
  for (int j = 0; j < V; ++j) final[j] = final_of(found[j]);
#pragma unroll 2
  for (int k = 0; k < mine; ++k) {
    const Words wx = of_x[k * kThreads], wg = Config::kGradient ? of_g[k * kThreads] : wx;
    float y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = final[j].result(element<T>(wg, j), kSign * element<T>(wx, j));
    store_words(out + origin + k * step, words_of<T>(y));
  }
}
