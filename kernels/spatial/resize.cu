// y[n, c, p] = sum over the taps of p along each axis of the product of their weights * x[n, c, tap]; the gradient is
// the same with the transposed taps.
//
// Layout:  x and y by strides, three spatial axes (missing ones have the extent 1 in front); the taps are tables of
//          resize_taps. A thread owns one place and `per` channels of it. kChannelsLast: neighbouring threads have
//          neighbouring channels, kVector each (and `per` is kVector); else neighbouring places. kTaps: along each
//          axis, 0 where the tables say how many.
// Needs:   pointers aligned to kVector elements, C a multiple of kVector.
// Bound:   memory for few taps; for many the look-ups in L1.

#include "dnnarray/core/vec.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kRank = 2;
  static constexpr int kTaps = 2;
  static constexpr bool kChannelsLast = false;
  static constexpr int kVector = 1;
  static constexpr int kThreads = 128;
};
struct Arguments {
  const int* first_o;
  const int* count_o;
  const dnnarray::arithmetic_t<Config::Element>* weight_o;
  const int* first_p;
  const int* count_p;
  const dnnarray::arithmetic_t<Config::Element>* weight_p;
  dnnarray::Shares shares;
  long long x_strides[5];
  long long y_strides[5];
};
#define DNNARRAY_ENTRY spatial_resize_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kTaps = Config::kTaps;
using V = Vec<T, kVector>;

// The taps of one element along an axis; without a table (an axis that is not there), the element 0 alone.
struct Row {
  const A* weights;
  long long elements, first, stride;
  int count, last;

  __device__ __forceinline__ Row(const int* firsts, const int* counts, const A* all, long long number, long long i,
                                 long long step)
      : weights(all + i),
        elements(number),
        first(firsts[i] * step),
        stride(step),
        count(counts[i]),
        last(counts[i] - 1) {}
  __device__ __forceinline__ long long offset(int k) const {
    return first + (kTaps > 0 && k > last ? last : k) * stride;
  }
  __device__ __forceinline__ A weight(int k) const { return kTaps == 1 ? A(1) : weights[k * elements]; }
};

// Calls `body` for each tap.
template <typename Body>
__device__ __forceinline__ void each(const Row& row, Body body) {
  if constexpr (kTaps > 0) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) body(k);
  } else {
    for (int k = 0; k < row.count; ++k) body(k);
  }
}

extern "C" __global__ void __launch_bounds__(
    Config::kThreads, (kTaps == 0 && Config::kRank == 3) || (kTaps == 2 && Config::kRank == 1) ? 1 : 0)
    DNNARRAY_ENTRY(const int* __restrict__ first_q, const int* __restrict__ count_q, const A* __restrict__ weight_q,
                   const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  using Share = PlaceAndChannels<Config::kChannelsLast>;
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= a.shares.threads) return;
  const Share mine(index, a.shares);
  const Row across(first_q, count_q, weight_q, a.shares.q, mine.column, a.x_strides[4]);
  const Row down(Config::kRank > 1 ? Row(a.first_p, a.count_p, a.weight_p, a.shares.p, mine.row, a.x_strides[3])
                                   : across);
  const Row deep(Config::kRank > 2 ? Row(a.first_o, a.count_o, a.weight_o, a.shares.o, mine.slice, a.x_strides[2])
                                   : across);
  const T* source = x + mine.n * a.x_strides[0];
  T* target = y + mine.n * a.y_strides[0] + mine.slice * a.y_strides[2] + mine.row * a.y_strides[3] +
              mine.column * a.y_strides[4];
  for (long long c = mine.first; c < mine.end; c += kVector) {
    A total[kVector] = {};
    auto take = [&](long long offset, A weight) {
      const V part = load<T, kVector>(source + c * a.x_strides[1] + offset);
#pragma unroll
      for (int v = 0; v < kVector; ++v) total[v] += widen(part.at[v]) * weight;
    };
    auto line = [&](long long offset, A weight) {
      each(across, [&](int k) { take(offset + across.offset(k), weight * across.weight(k)); });
    };
    auto plane = [&](long long offset, A weight) {
      each(down, [&](int k) { line(offset + down.offset(k), weight * down.weight(k)); });
    };
    if constexpr (Config::kRank == 1) line(0, A(1));
    if constexpr (Config::kRank == 2) plane(0, A(1));
    if constexpr (Config::kRank == 3) each(deep, [&](int k) { plane(deep.offset(k), deep.weight(k)); });
    V result;
#pragma unroll
    for (int v = 0; v < kVector; ++v) result.at[v] = narrow<T>(total[v]);
    store(target + c * a.y_strides[1], result);
  }
}
