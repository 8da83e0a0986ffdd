// Small arrays for the norms over channels: a statistic in the registers of a block, of one of kRows equal parts of it,
// or of a cluster of kBlocks.
#pragma once

#include "dnnarray/core/cluster.cuh"
#include "dnnarray/core/division.cuh"
#include "norm/channels.cuh"

namespace dnnarray {

// kCount sums (a power of two) for little more than the price of one: with each exchange each half of the lanes goes on
// with half of them.
template <int kLanes = kWarp, int kCount, typename A>
__device__ __forceinline__ void warp_sum_all(A (&values)[kCount]) {
  if constexpr (kCount == 1) {
    values[0] = warp_sum<kLanes>(values[0]);
  } else if constexpr (kCount == 2) {
    warp_sum_both<kLanes>(values[0], values[1]);
  } else {
    constexpr int kHalf = kLanes / 2, kRest = kCount / 2;
    const bool upper = threadIdx.x % kLanes >= kHalf;
    A mine[kRest];
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      mine[i] = upper ? values[kRest + i] : values[i];
      mine[i] += __shfl_xor_sync(kAllLanes, upper ? values[i] : values[kRest + i], kHalf);
    }
    warp_sum_all<kHalf>(mine);
#pragma unroll
    for (int i = 0; i < kRest; ++i) {
      const A other = __shfl_xor_sync(kAllLanes, mine[i], kHalf);
      values[i] = upper ? other : mine[i], values[kRest + i] = upper ? mine[i] : other;
    }
  }
}

// kValues numbers of each of the first kWarps warps, for all blocks of the cluster, by warps of blocks; filled up to
// four.
template <int kBlocks, int kWarps, int kValues, int kFours, typename A>
__device__ __forceinline__ void tell_cluster(const A (&values)[kValues], A (*smem)[kFours][4]) {
  static_assert(kFours == (kValues + 3) / 4, "whole vectors");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp,
            entry = static_cast<int>(blockIdx.x) % kBlocks * kWarps + warp;
  if (lane < kBlocks && warp < kWarps) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float four[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (4 * i + j < kValues) four[j] = values[4 * i + j];
      st_shared_cluster_v4(mapa(smem[entry][i], lane), four);
    }
  }
  cluster_barrier<kBlocks>();
}

// Two sums of each of kStatistics statistics over the threads of each of kRows equal parts of a block, whole warps
// each, or of a cluster, in a fixed order. `smem` holds two values of each for each warp (kBlocks > 1: of all blocks,
// filled up to four), for this call alone: nobody waits for those who still read.
template <int kThreads, int kRows, int kBlocks, int kStatistics, int kFours, typename A>
__device__ __forceinline__ void sum_parts(A (&sums)[2 * kStatistics], A (*smem)[kFours][4]) {
  constexpr int kWarps = kThreads / kWarp, kOwn = kWarps / kRows;
  warp_sum_all(sums);
  if constexpr (kBlocks > 1) {
    tell_cluster<kBlocks, kWarps>(sums, smem);
#pragma unroll
    for (int i = 0; i < 2 * kStatistics; ++i) {
      sums[i] = A(0);
#pragma unroll
      for (int entry = threadIdx.x % kWarp; entry < kBlocks * kWarps; entry += kWarp)
        sums[i] += smem[entry][i / 4][i % 4];
    }
    warp_sum_all(sums);
  } else if constexpr (kOwn > 1) {
    const int warp = threadIdx.x / kWarp, begin = warp / kOwn * kOwn;
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int i = 0; i < 2 * kStatistics; ++i) smem[warp][i / 4][i % 4] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * kStatistics; ++i) {
      sums[i] = smem[begin][i / 4][i % 4];
#pragma unroll
      for (int w = 1; w < kOwn; ++w) sums[i] += smem[begin + w][i / 4][i % 4];
    }
  }
}

// What a block has: `vectors` vectors from `base` on, of those of block `block` of a batch index; of kJoint blocks of a
// cluster each has a share of them.
template <int kVector, int kBlocks, int kJoint = kBlocks>
struct BlockPlace {
  int block, vectors, pitch, base;

  __device__ __forceinline__ static int share() { return static_cast<int>(blockIdx.x) % kBlocks; }
  __device__ __forceinline__ BlockPlace(int all, int between, int span, int row)
      : block(static_cast<int>(blockIdx.x) / kBlocks), vectors(all), pitch(between) {
    base = row * (static_cast<int>(gridDim.x) / kBlocks) * vectors * kVector + block * span;
    if constexpr (kJoint > 1) {
      const int each = (vectors + kJoint - 1) / kJoint;
      base += share() * each * pitch;
      vectors = max(min(each, vectors - share() * each), 0);
    }
  }
};

// The vectors of a thread: lane, lane + kLanes, ... of a block's, which come in images (kLast: rows of channels) of
// `each` vectors, `pitch` elements apart. kLast: as many lanes as are a multiple of `each` have some, so that all
// vectors of a thread are of the same channels.
template <typename T, int kVector, int kVectors, int kLanes, bool kGroup, bool kLast>
struct Owned {
  using A = arithmetic_t<T>;
  static constexpr int kStatistics = kLast && !kGroup ? kVector : 1;  // of a thread
  static constexpr int kChannels = kLast    ? kVector
                                   : kGroup ? kVectors
                                            : 1;    // that the vectors of a thread may belong to
  int at[kVectors], image[kVectors], column, step;  // step: lanes that have vectors
  bool there[kVectors];

  __device__ __forceinline__ Owned(int lane, int base, int vectors, const Divisor& each, int pitch, bool row)
      : column(static_cast<int>(each.remainder(static_cast<unsigned>(lane))) * kVector),
        step(kLast ? static_cast<int>(each.quotient(kLanes) * each.n) : kLanes) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int i = k * step + lane;
      there[k] = row && lane < step && i < vectors;
      image[k] = static_cast<int>(each.quotient(static_cast<unsigned>(i)));
      at[k] = base + image[k] * pitch + (i - image[k] * static_cast<int>(each.n)) * kVector;
    }
  }
  // Of element v of vector k: which of the channels, and of the statistics, of the thread.
  __device__ __forceinline__ static int channel(int k, int v) { return kLast ? v : kGroup ? k : 0; }
  __device__ __forceinline__ static int statistic(int v) { return kStatistics > 1 ? v : 0; }
  // The place of a channel of the thread among those of the block.
  __device__ __forceinline__ int place(int c) const { return kLast ? column + c : kGroup && there[c] ? image[c] : 0; }

  // The vectors as they come, 0 where there are none, and their values.
  struct Fetched {
    Wordwise<T, kVector> piece[kVectors] = {};
  };
  __device__ __forceinline__ Fetched fetch(const T* from) const {
    Fetched to;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (from != nullptr && there[k]) to.piece[k] = load_wordwise<T, kVector>(from + at[k]);
    return to;
  }
  __device__ __forceinline__ static void widen_pieces(A (&to)[kVectors][kVector], const Fetched& from) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) widen_all(to[k], from.piece[k]);
  }
  __device__ __forceinline__ void write(T* to, const A (&values)[kVectors][kVector]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      if (there[k]) store(to + at[k], narrow_all<T, kVector>(values[k]));
  }
  // f(k, v) for each value.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!there[k]) continue;
#pragma unroll
      for (int v = 0; v < kVector; ++v) f(k, v);
    }
  }
};

// A statistic as the threads use it, without double; `rest` is what rounding took from the mean.
template <typename T>
struct Brief {
  using A = arithmetic_t<T>;
  A mean, rest, rstd;
  Shares sums;  // of the distances from where the mean was first thought to be, and of their squares
  A origin;

  __device__ __forceinline__ Affine<A> affine(A weight, A bias) const {
    const A scale = rstd * weight;
    return {mean, scale, bias - rest * scale, rstd};
  }
};

// How many of a statistic's `vectors` vectors the threads of a warp have, which begin at `lane` of `step`.
template <int kVectors>
__device__ __forceinline__ int vectors_of_warp(int vectors, int lane, int step) {
  const int most = min(step - lane, kWarp);
  int count = 0;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) count += max(min(vectors - k * step - lane, most), 0);
  return count;
}

// The sums of distances, and of their squares, of others (their mean, both sums, and how many) to those around
// `origin`.
template <typename A>
__device__ __forceinline__ void join(A origin, A& distance, A& square, const A (&of)[4]) {
  const A far = of[0] - origin, shift = of[3] * far;
  distance += of[1] + shift;
  square += of[2] + far * (A(2) * of[1] + shift);
}

// Of the values of a thread and its fellows: the mean of those of a warp, then the distances from it; warps then meet
// once, around the mean of the first of them, from which the mean of all is no farther than a few times the spread.
// `smem` holds four values of each statistic for each warp (of all blocks), for this call alone.
template <int kThreads, int kRows, int kBlocks, typename T, int kVector, int kVectors, int kLanes, bool kGroup,
          bool kLast, int kStatistics, typename A>
__device__ __forceinline__ void find_brief(Brief<T> (&found)[kStatistics],
                                           const Owned<T, kVector, kVectors, kLanes, kGroup, kLast>& own,
                                           const A (&x)[kVectors][kVector], int vectors, A share, A eps,
                                           A (*smem)[kStatistics][4]) {
  constexpr int kOwn = kLanes / kWarp, kWarps = kThreads / kWarp;
  const int warp = threadIdx.x / kWarp, begin = kBlocks > 1 ? 0 : warp / kOwn * kOwn;
  const A count = A(kVector / kStatistics * vectors_of_warp<kVectors>(vectors, (warp - begin) * kWarp, own.step)),
          inverse = rcp_approx_ftz(max(count, A(1)));
  A origin[kStatistics] = {}, sums[2 * kStatistics] = {};  // sums of the distances, then of their squares
  own.each([&](int k, int v) { origin[own.statistic(v)] += x[k][v]; });
  warp_sum_all(origin);
#pragma unroll
  for (int s = 0; s < kStatistics; ++s) origin[s] *= inverse;
  own.each([&](int k, int v) {
    const A d = x[k][v] - origin[own.statistic(v)];
    sums[own.statistic(v)] += d;
    sums[kStatistics + own.statistic(v)] += d * d;
  });
  if constexpr (kStatistics > 1) {
    warp_sum_all(sums);
  } else {  // two chains side by side are shorter
    sums[0] = warp_sum(sums[0]), sums[1] = warp_sum(sums[1]);
  }
  if constexpr (kBlocks > 1) {
    A mine[4 * kStatistics];
#pragma unroll
    for (int s = 0; s < kStatistics; ++s)
      mine[4 * s] = origin[s], mine[4 * s + 1] = sums[s], mine[4 * s + 2] = sums[kStatistics + s],
               mine[4 * s + 3] = count;
    tell_cluster<kBlocks, kWarps>(mine, smem);
#pragma unroll
    for (int s = 0; s < kStatistics; ++s) {
      origin[s] = smem[0][s][0], sums[s] = sums[kStatistics + s] = A(0);
#pragma unroll
      for (int entry = threadIdx.x % kWarp; entry < kBlocks * kWarps; entry += kWarp)
        join(origin[s], sums[s], sums[kStatistics + s], smem[entry][s]);
    }
    warp_sum_all(sums);
  } else if constexpr (kOwn > 1) {
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int s = 0; s < kStatistics; ++s)
        smem[warp][s][0] = origin[s], smem[warp][s][1] = sums[s], smem[warp][s][2] = sums[kStatistics + s],
        smem[warp][s][3] = count;
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kStatistics; ++s) {
      origin[s] = smem[begin][s][0], sums[s] = smem[begin][s][1], sums[kStatistics + s] = smem[begin][s][2];
#pragma unroll
      for (int w = 1; w < kOwn; ++w) join(origin[s], sums[s], sums[kStatistics + s], smem[begin + w][s]);
    }
  }
#pragma unroll
  for (int s = 0; s < kStatistics; ++s) {
    const A distance = sums[s], square = sums[kStatistics + s], delta = distance * share, mean = origin[s] + delta;
    found[s] = {mean,
                delta - (mean - origin[s]),
                rstd_for<T>(square * share - delta * delta, eps),
                {double(distance), double(square)},
                origin[s]};
  }
}

}  // namespace dnnarray
