// Tiles of convolutions whose operands TMA brings: one thread asks, warpgroups multiply. What the kernels have in
// common.
#pragma once

#include "conv/geometry.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "conv/epilogue.cuh"
#include "dnnarray/ptx/tma.cuh"
#include "dnnarray/ptx/mbarrier.cuh"

namespace dnnarray {

struct TmaPlace {
  long long m;
  int n, group;
};

// Channels of the sum of a group, the window, and a bit for each of its axes, the last one first, along which the
// weight is walked from its end.
struct TmaWeight {
  int channels, backwards, d, h, w;

  __device__ __forceinline__ int walked(int tap, int window, int bit) const {
    return backwards & bit ? window - 1 - tap : tap;
  }
};

// kTileM x kTileN sums of a block.
template <typename Config>
struct TmaTile {
  using T = typename Config::Element;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN;
  static constexpr int kGroup = 128, kRow = 128,
                       kTileK = kRow / sizeof(T);  // threads of a warpgroup; elements and bytes of a panel's row
  static constexpr int kMmas = kTileM > 192 ? 2 : 1, kConsumers = kTileM / 64 / kMmas,
                       kThreads = (1 + kConsumers) * kGroup;
  static constexpr int kFewer = 56,
                       kMore = kConsumers == 3 ? 152 : 224;  // registers of asking and of multiplying threads
  static constexpr int kBytesM = kTileM * kRow, kBytesN = kTileN * kRow;
  static constexpr bool kTransposedWeight = Config::kTransposed;

  // Tile i.
  static __device__ __forceinline__ TmaPlace place(long long i, long long tiles_m, long long tiles_n) {
    const Split by_n = split(i, static_cast<int>(tiles_n));
    const Split by_m = split(by_n.quotient, static_cast<int>(tiles_m));
    return {static_cast<long long>(by_m.rest) * kTileM, by_n.rest * kTileN, static_cast<int>(by_m.quotient)};
  }

  // The weight of one tap and kTileK channels.
  static __device__ __forceinline__ void ask_weight(const TmaWeight& a, const TensorMap& map, const TmaPlace& tile,
                                                    const Place& tap, int c, int outs, unsigned target,
                                                    unsigned barrier) {
    const int w = a.walked(tap.w, a.w, 1), h = a.walked(tap.h, a.h, 2), d = a.walked(tap.d, a.d, 4);
    if constexpr (kTransposedWeight) {
#pragma unroll
      for (int n = 0; n < kTileN; n += 64) {
        tma_load(target + n * kRow, map, barrier, BoxPlace{tile.n + n, w, h, d, tile.group * a.channels + c});
      }
    } else {
      tma_load(target, map, barrier, BoxPlace{c, w, h, d, tile.group * outs + tile.n});
    }
  }

  // Gives a stage back.
  static __device__ __forceinline__ void release(unsigned empty) {
    if (threadIdx.x % kGroup == 0) mbarrier_arrive(empty);
  }

  static __device__ __forceinline__ void clear(float (&sums)[kMmas][kTileN / 2]) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  }

  // A thread's part of the bias, asked for before a tile's products so that nobody waits for it behind them, and kept
  // while the channels stay.
  struct Bias {
    Vec<T, 2> pairs[Config::kBias ? kTileN / 8 : 1];
    int first = -1;

    template <typename R>
    __device__ __forceinline__ void ask(const Target<T, R>& target, const TmaPlace& tile) {
      if constexpr (Config::kBias) {
        const int channel = tile.group * target.outs + tile.n;
        if (channel == first) return;
        first = channel;
        const T* from = target.bias + channel + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) pairs[j] = load<T, 2>(from + (tile.n + j * 8 < target.outs ? j * 8 : 0));
      }
    }

    // In the place of `clear`: no addition behind the products. Held, or the compiler brings them into the first
    // products and serialises all.
    __device__ __forceinline__ void begin(float (&sums)[kMmas][kTileN / 2]) const {
      if constexpr (Config::kBias) {
#pragma unroll
        for (int i = 0; i < kMmas; ++i) {
#pragma unroll
          for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = widen(pairs[j / 4].at[j % 2]);
          hold(sums[i]);
        }
      } else {
        clear(sums);
      }
    }

    __device__ __forceinline__ void add(float (&sums)[kMmas][kTileN / 2]) const {
      if constexpr (Config::kBias) {
#pragma unroll
        for (int i = 0; i < kMmas; ++i)
#pragma unroll
          for (int j = 0; j < kTileN / 2; ++j) sums[i][j] += widen(pairs[j / 4].at[j % 2]);
      }
    }
  };

  // Adds the products of one stage; `rows` are those of this warpgroup.
  static __device__ __forceinline__ void multiply(float (&sums)[kMmas][kTileN / 2], unsigned rows, unsigned weight) {
    wgmma_fence();
    const unsigned long long b = kTransposedWeight ? transposed_panel(weight, kTileK * kRow) : panel(weight);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const unsigned long long a = panel(rows + i * 64 * kRow);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        Wgmma<T, false, kTransposedWeight, kTileN>::run(sums[i], a + 2 * k, b + (kTransposedWeight ? 128 : 2) * k);
    }
    wgmma_commit_group();
  }

  static __device__ __forceinline__ void finish(float (&sums)[kMmas][kTileN / 2]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < kMmas; ++i) hold(sums[i]);
  }

  // The tile's row whose sums this thread holds; `half` picks one of two.
  static __device__ __forceinline__ int row(int part, int mma, int half) {
    const int in_group = threadIdx.x % kGroup;
    return (part * kMmas + mma) * 64 + in_group / 32 * 16 + in_group % 32 / 4 + half * 8;
  }

  struct End {  // what is left to do with sums that hold bias and residual
    using Activation = typename Config::Activation;
    static constexpr bool kBias = false, kResidual = false;
  };

  // Where the channels of the rows begin whose sums this thread holds, or -1: `image.at(m)`. Best asked for while
  // products run.
  struct Rows {
    long long at[kMmas][2];

    Rows() = default;

    template <typename Image>
    __device__ __forceinline__ Rows(const TmaPlace& tile, int part, const Image& image) {
#pragma unroll
      for (int i = 0; i < kMmas; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) at[i][half] = image.at(tile.m + row(part, i, half));
    }
  };

  // Adds a residual that nobody has brought: before any store, so that no load waits for one.
  template <typename R>
  static __device__ __forceinline__ void add_rows(const Target<T, R>& target, float (&sums)[kMmas][kTileN / 2],
                                                  const TmaPlace& tile, const Rows& rows) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long at = rows.at[i][half];
        const int column = threadIdx.x % 4 * 2, left = at < 0 ? 0 : target.outs - tile.n - column;
        const T* from = target.residual + at + tile.group * target.outs + tile.n + column;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) {
          if (8 * j >= left) continue;
          const Vec<T, 2> residual = load<T, 2>(from + 8 * j);
          sums[i][4 * j + 2 * half] += widen(residual.at[0]), sums[i][4 * j + 2 * half + 1] += widen(residual.at[1]);
        }
      }
  }

  // The result from registers, four neighbouring lanes 64 bytes of a row.
  template <bool kResidual, typename R>
  static __device__ __forceinline__ void write_rows(const Target<T, R>& target, float (&sums)[kMmas][kTileN / 2],
                                                    const TmaPlace& tile, const Rows& rows) {
    if constexpr (kResidual) add_rows(target, sums, tile, rows);
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long at = rows.at[i][half];
        write_row<End, kTileN>(target, sums[i], half, tile.group, tile.n, at < 0 ? 0 : at, at >= 0);
      }
  }
};

}  // namespace dnnarray
