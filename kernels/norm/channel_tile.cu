// Batch norm in one launch that reads x once, of channels that fit the registers of a block: y = act((x - mean) * scale + shift + residual).
//
// Layout:  pieces of `run` neighbouring elements: the images of some channels in each batch index, or (channels last) some channels in
//          each row. kThreads / (vectors of a piece) pieces are worked on at a time; a thread has the same kVector columns of every one of its pieces,
//          so that nothing about a column is looked up twice. `width` columns are of a channel, whole ones of a block.
// Needs:   runs and columns multiples of kVector elements; at most kVectors pieces a thread, kMost channels a block; pointers aligned to kVector elements.
// Bound:   memory: x and residual read once, y written once. Sums of a column in the arithmetic type: first for the mean, then of the distances from it,
//          whose own sum corrects it; threads meet in shared memory, in a fixed order.

#include "dnnarray/activation.cuh"
#include "dnnarray/channel_norm.cuh"
#include "dnnarray/division.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  using Activation = dnnarray::Identity;
  static constexpr bool kResidual = false;
  static constexpr int kVector = 8;
  static constexpr int kVectors = 13;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY norm_channel_tile_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads, kWarps = kThreads / kWarp;
constexpr int kPart = kVector * sizeof(A) > 16 ? 16 / sizeof(A) : kVector;
constexpr int kMost = 128;                                                // statistics and channels of a block
constexpr int kColumns = kThreads * kVector + kThreads * kPart / 2;       // of a table: a number for each column of the pieces at work, of at least two
constexpr int kTables = 2;                                                // vectors, with a gap behind each so that they begin in different banks

// What a channel becomes: its mean, what rounding took from that, and rstd.
struct Known {
  A mean, rest, rstd;
};

// The place of a thread: its vector of a piece, and its pieces, `step` apart.
struct Place {
  int vectors, column, slot, step, pieces;

  __device__ __forceinline__ Place(int run, int count) : vectors(run / kVector), step(kThreads / max(vectors, 2)), pieces(count) {
    slot = threadIdx.x / vectors;
    column = threadIdx.x % vectors * kVector;
    if (slot >= step) slot = pieces;  // more threads than whole pieces, or than tables have room for
  }
  __device__ __forceinline__ bool there(int k) const { return slot + k * step < pieces; }
};

// The sums of a thread for its columns, to where those of its piece lie.
template <int kCount>
__device__ __forceinline__ void put_sums(A (*smem)[kColumns], const A (&sums)[kTables][kVector], int at, bool mine) {
#pragma unroll
  for (int t = 0; t < kCount; ++t) {
#pragma unroll
    for (int v = 0; v < kVector; v += kPart) {
      Vec<A, kPart> part;
#pragma unroll
      for (int i = 0; i < kPart; ++i) part.at[i] = sums[t][v + i];
      if (mine) store(&smem[t][at + v], part);
    }
  }
  __syncthreads();
}

// A warp adds up the sums of the columns of a channel over `rows` pieces; every lane gets them.
template <int kCount>
__device__ __forceinline__ void over_columns(A (&sums)[kTables], const A (*smem)[kColumns], int first, int run, int rows, const Divisor& columns) {
  const int width = static_cast<int>(columns.n);
#pragma unroll
  for (int t = 0; t < kTables; ++t) sums[t] = A(0);
#pragma unroll 2
  for (int i = threadIdx.x % kWarp; i < rows * width; i += kWarp) {
    const int row = static_cast<int>(columns.quotient(static_cast<unsigned>(i))), at = row * (run + kPart - width) + first + i;
#pragma unroll
    for (int t = 0; t < kCount; ++t) sums[t] += smem[t][at];
  }
#pragma unroll
  for (int t = 0; t < kCount; ++t) sums[t] = warp_sum(sums[t]);
}

// Null: what is absent or not asked for. `tile` of the `columns` of a piece go to a block.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, const void* weight, const void* bias, const void* running_mean,
                   const void* running_var, T* __restrict__ y, A* mean_of, A* rstd_of, void* next_mean, void* next_var, long long wide_weight,
                   long long wide_bias, long long wide_running_mean, long long wide_running_var, long long pieces, long long columns,
                   long long tile, long long width_of, long long width_divisor, double count, double share, double momentum, double eps, double p64, double q64) {
  __shared__ __align__(16) A smem[kTables][kColumns];
  __shared__ Known smem_known[kMost];
  __shared__ A smem_weight[kMost], smem_bias[kMost];
  const Divisor width(width_of, width_divisor);
  const int first = static_cast<int>(blockIdx.x) * static_cast<int>(tile), run = min(static_cast<int>(tile), static_cast<int>(columns) - first);
  const Place place(run, static_cast<int>(pieces));
  const int rows = min(place.step, place.pieces), channels = static_cast<int>(width.quotient(static_cast<unsigned>(run)));
  const long long base = first + place.column + place.slot * columns, step = place.step * columns;
  const bool mine = place.slot < rows;
  const int own = place.slot * (run + kPart) + place.column;
  Wordwise<T, kVector> held[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    held[k] = {};
    if (place.there(k)) held[k] = load_wordwise<T, kVector>(x + base + k * step);
  }

  const Parameter<T> absent = {nullptr, false}, w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0};
  if (threadIdx.x < channels) {  // while x is on its way
    const unsigned channel = width.quotient(static_cast<unsigned>(first)) + threadIdx.x;
    smem_weight[threadIdx.x] = w.at(channel, A(1)), smem_bias[threadIdx.x] = b.at(channel, A(0));
  }

  A sums[kTables][kVector] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    A of_x[kVector];
    widen_all(of_x, held[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[0][v] += of_x[v];
  }
  put_sums<1>(smem, sums, own, mine);
  const int warp = threadIdx.x / kWarp;
  A all[kTables];
#pragma unroll 1
  for (int s = warp; s < channels; s += kWarps) {
    over_columns<1>(all, smem, s * static_cast<int>(width.n), run, rows, width);
    if (threadIdx.x % kWarp == 0) smem_known[s].mean = all[0] * A(share);
  }
  __syncthreads();

  A origin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    origin[v] = smem_known[width.quotient(static_cast<unsigned>(place.column + v))].mean;
    sums[0][v] = sums[1][v] = A(0);
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A of_x[kVector];
    widen_all(of_x, held[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A distance = of_x[v] - origin[v];
      sums[0][v] += distance;
      sums[1][v] += distance * distance;
    }
  }
  put_sums<2>(smem, sums, own, mine);
  const Statistic<T> statistic = {absent,    absent,   absent, {running_mean, wide_running_mean != 0}, {running_var, wide_running_var != 0}, mean_of, rstd_of,
                                  next_mean, next_var, count,  share, momentum, eps};
#pragma unroll 1
  for (int s = warp; s < channels; s += kWarps) {
    over_columns<2>(all, smem, s * static_cast<int>(width.n), run, rows, width);
    const long long index = width.quotient(static_cast<unsigned>(first)) + s;
    const auto found = statistic.find({double(all[0]), double(all[1])}, double(smem_known[s].mean), index, threadIdx.x % kWarp == 0);
    const A near = A(found.mean);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) smem_known[s] = {near, A(found.mean - double(near)), found.rstd};
  }
  __syncthreads();

  A mean[kVector], scale[kVector], shift[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const unsigned channel = width.quotient(static_cast<unsigned>(place.column + v));
    const Known known = smem_known[channel];
    mean[v] = known.mean, scale[v] = known.rstd * smem_weight[channel], shift[v] = smem_bias[channel] - known.rest * scale[v];
    if (sizeof(T) == 2) shift[v] -= mean[v] * scale[v], mean[v] = A(0);  // what is rounded to a half type has digits to spare for the mean in the shift
  }
  const A p = A(p64), q = A(q64);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A values[kVector], more[kVector] = {};
    widen_all(values, held[k]);
    if constexpr (Config::kResidual) widen_all(more, load_wordwise<T, kVector>(residual + base + k * step));
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A distance = sizeof(T) == 2 ? values[v] : values[v] - mean[v];
      const A z = distance * scale[v] + shift[v];
      values[v] = Config::Activation::forward(Config::kResidual ? z + more[v] : z, p, q);
    }
    store(y + base + k * step, narrow_all<T, kVector>(values));
  }
}
