// Mean and reciprocal standard deviation of a row that lies spread over the threads of a cluster, with one barrier.
#pragma once

#include "dnnarray/norm.cuh"
#include "dnnarray/slice.cuh"

namespace dnnarray {

// Each warp sums around the mean of its first values; the warps' sums meet around that of the first one. So nothing is lost where a row lies
// far from 0, and little where it has outliers. Without kCentred everything is summed around 0. With kLanes a row belongs to so many lanes
// of a warp, and there is no barrier.
template <typename T, bool kCentred, int kBlocks, int kThreads, int kLanes = 0>
struct Spread {
  using Table = Gathered<kBlocks, kThreads, kCentred ? 4 : 1>;
  Table table;

  // `visit(f, limit)` calls f(value) for each value of the thread's vectors, at the most `limit` of these; there are `own` of V values each,
  // one value being `share` of the row. Gives the mean in two parts, of which the second is small, and rstd. Another barrier of the cluster
  // must lie between two calls.
  template <int V, typename Visit>
  __device__ __forceinline__ void find(const Visit& visit, int own, float share, float eps, int rank, float& mean, float& delta, float& rstd) {
    constexpr int kTogether = kLanes > 0 ? kLanes : kWarp;
    float centre = 0, count = 0, distance = 0, square = 0;
    if constexpr (kCentred) {
      float sum = 0;
      visit([&](float x) { sum += x; }, own > 0 ? 1 : 0);
      const float first = warp_sum<kTogether>(own > 0 ? static_cast<float>(V) : 0.0f);
      sum = warp_sum<kTogether>(sum);  // by all lanes: those of a row that is not there have no first values
      centre = first > 0 ? sum * quick_reciprocal(first) : 0.0f;
      if constexpr (kLanes == 0) count = warp_sum(static_cast<float>(own * V));
    }
    visit(
        [&](float x) {
          const float d = x - centre;
          distance += d, square += d * d;
        },
        own);
    distance = kCentred ? warp_sum<kTogether>(distance) : 0.0f, square = warp_sum<kTogether>(square);
    if constexpr (kLanes == 0) meet(centre, count, distance, square, rank);
    mean = centre, delta = distance * share;
    rstd = rstd_for<T>(square * share - delta * delta, eps);
  }

 private:
  // The sums of a warp around its centre become those of the row, around the centre of the first warp.
  __device__ __forceinline__ void meet(float& centre, float count, float& distance, float& square, int rank) {
    if constexpr (kCentred) {
      const float mine[4] = {square, centre, count, distance};
      table.put(mine, rank);
    } else {
      const float mine[1] = {square};
      table.put(mine, rank);
    }
    cluster_barrier<kBlocks>();
    square = Table::reduce(Sum(), [&](int i) { return table.at[0][i]; });
    if constexpr (kCentred) {
      const auto shift = [&](int i) { return table.at[2][i] > 0 ? table.at[1][i] - table.at[1][0] : 0.0f; };
      distance = Table::reduce(Sum(), [&](int i) { return table.at[3][i] + table.at[2][i] * shift(i); });
      square += Table::reduce(Sum(), [&](int i) { return shift(i) * (2.0f * table.at[3][i] + shift(i) * table.at[2][i]); });
      centre = table.at[1][0];
    }
  }
};

// A parameter of V neighbouring columns, of T's size or larger.
template <typename P, int V>
__device__ __forceinline__ void read_parameter(float (&to)[V], const P* from) {
  constexpr int kPiece = 16 / sizeof(P);
  static_assert(V % kPiece == 0, "whole vectors");
#pragma unroll
  for (int start = 0; start < V; start += kPiece) {
    const Words piece = load_words(from + start);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) to[start + j] = element<P>(piece, j);
  }
}

}  // namespace dnnarray
