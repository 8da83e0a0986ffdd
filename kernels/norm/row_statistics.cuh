// Mean and reciprocal standard deviation of a row that lies spread over the threads of a cluster, with one barrier.
#pragma once

#include "dnnarray/core/slice.cuh"
#include "norm/statistics.cuh"

namespace dnnarray {

// Each warp sums around the mean of its first values; the warps' sums meet around that of the first one. So nothing is
// lost where a row lies far from 0, and little where it has outliers. Without kCentred everything is summed around 0.
// With kLanes a row belongs to so many lanes of a warp, and there is no barrier.
template <typename T, bool kCentred, int kBlocks, int kThreads, int kLanes = 0>
struct RowStatistics {
  using Table = Gathered<kBlocks, kThreads, kCentred ? 4 : 1>;
  Table table;

  // What a warp has of a row: sums of the distances from its centre.
  struct Part {
    float centre, count, distance, square;
  };

  // `visit(f, limit)` calls f(value) for each value of the thread's vectors, at the most `limit` of these; there are
  // `own` of V values each, one value being `share` of the row. Gives the mean in two parts, of which the second is
  // small, and rstd. Another barrier of the cluster must lie between two calls.
  template <int V, typename Visit>
  __device__ __forceinline__ void find(const Visit& visit, int own, float share, float eps, int rank, float& mean,
                                       float& delta, float& rstd) {
    Part part = sums<V>(visit, own);
    if constexpr (kLanes == 0) {
      send(part, rank);
      cluster_barrier<kBlocks>();
      part = gathered();
    }
    result(part, share, eps, mean, delta, rstd);
  }

  // The same in pieces, for who has something else to do before all have sent theirs: a barrier lies between `send` and
  // `gathered`.
  template <int V, typename Visit>
  static __device__ __forceinline__ Part sums(const Visit& visit, int own) {
    constexpr int kTogether = kLanes > 0 ? kLanes : kWarp;
    Part part = {0, 0, 0, 0};
    if constexpr (kCentred) {
      float sum = 0;
      visit([&](float x) { sum += x; }, own > 0 ? 1 : 0);
      const float first = warp_sum<kTogether>(own > 0 ? static_cast<float>(V) : 0.0f);
      sum = warp_sum<kTogether>(sum);  // by all lanes: those of a row that is not there have no first values
      part.centre = first > 0 ? sum * rcp_approx_ftz(first) : 0.0f;
      if constexpr (kLanes == 0) part.count = warp_sum(static_cast<float>(own * V));
    }
    visit(
        [&](float x) {
          const float d = x - part.centre;
          part.distance += d, part.square += d * d;
        },
        own);
    part.distance = kCentred ? warp_sum<kTogether>(part.distance) : 0.0f,
    part.square = warp_sum<kTogether>(part.square);
    return part;
  }

  __device__ __forceinline__ void send(const Part& part, int rank) {
    if constexpr (kCentred) {
      const float mine[4] = {part.square, part.centre, part.count, part.distance};
      table.put(mine, rank);
    } else {
      const float mine[1] = {part.square};
      table.put(mine, rank);
    }
  }

  // The sums of all warps around their centres, around the centre of the first warp.
  __device__ __forceinline__ Part gathered() const {
    Part all = {0, 0, 0, Table::reduce(Sum(), [&](int i) { return table.at[0][i]; })};
    if constexpr (kCentred) {
      const auto shift = [&](int i) { return table.at[2][i] > 0 ? table.at[1][i] - table.at[1][0] : 0.0f; };
      all.distance = Table::reduce(Sum(), [&](int i) { return table.at[3][i] + table.at[2][i] * shift(i); });
      all.square +=
          Table::reduce(Sum(), [&](int i) { return shift(i) * (2.0f * table.at[3][i] + shift(i) * table.at[2][i]); });
      all.centre = table.at[1][0];
    }
    return all;
  }

  static __device__ __forceinline__ void result(const Part& all, float share, float eps, float& mean, float& delta,
                                                float& rstd) {
    mean = all.centre, delta = all.distance * share;
    rstd = rstd_for<T>(all.square * share - delta * delta, eps);
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
