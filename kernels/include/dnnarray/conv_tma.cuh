// Tiles of convolutions whose operands the copy engine brings: one thread asks, warpgroups multiply. What the kernels have in common.
#pragma once

#include "dnnarray/cluster.cuh"
#include "dnnarray/conv.cuh"
#include "dnnarray/group_product.cuh"
#include "dnnarray/tile.cuh"
#include "dnnarray/tma.cuh"

namespace dnnarray {

struct TmaPlace {
  long long m;
  int n, group;
};

// Channels of the sum of a group, the window, and a bit for each of its axes, the last one first, along which the weight is walked from its end.
struct TmaWeight {
  int channels, backwards, d, h, w;

  __device__ __forceinline__ int walked(int tap, int window, int bit) const { return backwards & bit ? window - 1 - tap : tap; }
};

// kTileM x kTileN sums of a block; kCluster blocks take the same channels of neighbouring rows.
template <typename Config>
struct TmaTile {
  using T = typename Config::Element;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kCluster = Config::kCluster;
  static constexpr int kGroup = 128, kTileK = 64, kRow = 128;  // threads of a warpgroup; elements and bytes of a panel's row
  static constexpr int kMmas = kTileM > 192 ? 2 : 1, kConsumers = kTileM / 64 / kMmas, kThreads = (1 + kConsumers) * kGroup;
  static constexpr int kFewer = 56, kMore = kConsumers == 3 ? 152 : 224;  // registers of asking and of multiplying threads
  static constexpr int kBytesM = kTileM * kRow, kBytesN = kTileN * kRow;
  static constexpr bool kTurned = Config::kTransposed;

  static __device__ __forceinline__ int rank() { return kCluster > 1 ? blockIdx.x % kCluster : 0; }

  // Tile i of a cluster; `tiles_m` counts for clusters.
  static __device__ __forceinline__ TmaPlace place(long long i, long long tiles_m, long long tiles_n) {
    const Split by_n = split(i, static_cast<int>(tiles_n));
    const Split by_m = split(by_n.quotient, static_cast<int>(tiles_m));
    return {(static_cast<long long>(by_m.rest) * kCluster + rank()) * kTileM, by_n.rest * kTileN, static_cast<int>(by_m.quotient)};
  }

  // This block's part of the weight of one tap and 64 channels, for all blocks of the cluster.
  static __device__ __forceinline__ void ask_weight(const TmaWeight& a, const TensorMap& map, const TmaPlace& tile, const Place& tap, int c, int outs,
                                                    unsigned target, unsigned barrier) {
    const int w = a.walked(tap.w, a.w, 1), h = a.walked(tap.h, a.h, 2), d = a.walked(tap.d, a.d, 4);
    constexpr int kBoxes = kTurned ? kTileN / 64 / kCluster : 1, kRows = kTurned ? kTileK : kTileN / kCluster;
    static_assert(kBoxes > 0, "a box for each block");
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int box = rank() * kBoxes + i;
      const BoxPlace place = kTurned ? BoxPlace{tile.n + box * 64, w, h, d, tile.group * a.channels + c}
                                     : BoxPlace{c, w, h, d, tile.group * outs + tile.n + box * kRows};
      if constexpr (kCluster > 1) {
        copy_box(target + box * kRows * kRow, map, barrier, place, (1 << kCluster) - 1);
      } else {
        copy_box(target + box * kRows * kRow, map, barrier, place);
      }
    }
  }

  // A stage is free in every block that writes into it.
  static __device__ __forceinline__ void release(unsigned empty) {
    const int thread = threadIdx.x % kGroup;
    if constexpr (kCluster > 1) {
      if (thread < kCluster) barrier_arrive_at(empty, thread);
    } else if (thread == 0) {
      barrier_arrive(empty);
    }
  }

  static __device__ __forceinline__ void clear(float (&sums)[kMmas][kTileN / 2]) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  }

  // Adds the products of one stage; `rows` are those of this warpgroup.
  static __device__ __forceinline__ void multiply(float (&sums)[kMmas][kTileN / 2], unsigned rows, unsigned weight) {
    wgmma_fence();
    const unsigned long long b = kTurned ? transposed_panel(weight, kTileK * kRow) : panel(weight);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const unsigned long long a = panel(rows + i * 64 * kRow);
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<T, false, kTurned, kTileN>::run(sums[i], a + 2 * k, b + (kTurned ? 128 : 2) * k);
    }
    wgmma_commit();
  }

  static __device__ __forceinline__ void finish(float (&sums)[kMmas][kTileN / 2]) {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kMmas; ++i) hold(sums[i]);
  }

  // The tile's row whose sums this thread holds; `half` picks one of two.
  static __device__ __forceinline__ int row(int part, int mma, int half) {
    const int in_group = threadIdx.x % kGroup;
    return (part * kMmas + mma) * 64 + in_group / 32 * 16 + in_group % 32 / 4 + half * 8;
  }
};

}  // namespace dnnarray
