// Tiles of convolutions whose operands the copy engine brings: one thread asks, warpgroups multiply. What the kernels have in common.
#pragma once

#include "dnnarray/conv.cuh"
#include "dnnarray/group_product.cuh"
#include "dnnarray/tile.cuh"
#include "dnnarray/tma.cuh"
#include "dnnarray/warp_product.cuh"

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

// kTileM x kTileN sums of a block.
template <typename Config>
struct TmaTile {
  using T = typename Config::Element;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN;
  static constexpr int kGroup = 128, kTileK = 64, kRow = 128;  // threads of a warpgroup; elements and bytes of a panel's row
  static constexpr int kMmas = kTileM > 192 ? 2 : 1, kConsumers = kTileM / 64 / kMmas, kThreads = (1 + kConsumers) * kGroup;
  static constexpr int kFewer = 56, kMore = kConsumers == 3 ? 152 : 224;  // registers of asking and of multiplying threads
  static constexpr int kBytesM = kTileM * kRow, kBytesN = kTileN * kRow;
  static constexpr bool kTurned = Config::kTransposed;

  // Tile i.
  static __device__ __forceinline__ TmaPlace place(long long i, long long tiles_m, long long tiles_n) {
    const Split by_n = split(i, static_cast<int>(tiles_n));
    const Split by_m = split(by_n.quotient, static_cast<int>(tiles_m));
    return {static_cast<long long>(by_m.rest) * kTileM, by_n.rest * kTileN, static_cast<int>(by_m.quotient)};
  }

  // The weight of one tap and 64 channels.
  static __device__ __forceinline__ void ask_weight(const TmaWeight& a, const TensorMap& map, const TmaPlace& tile, const Place& tap, int c, int outs,
                                                    unsigned target, unsigned barrier) {
    const int w = a.walked(tap.w, a.w, 1), h = a.walked(tap.h, a.h, 2), d = a.walked(tap.d, a.d, 4);
    if constexpr (kTurned) {
#pragma unroll
      for (int n = 0; n < kTileN; n += 64) {
        copy_box(target + n * kRow, map, barrier, BoxPlace{tile.n + n, w, h, d, tile.group * a.channels + c});
      }
    } else {
      copy_box(target, map, barrier, BoxPlace{c, w, h, d, tile.group * outs + tile.n});
    }
  }

  // Gives a stage back.
  static __device__ __forceinline__ void release(unsigned empty) {
    if (threadIdx.x % kGroup == 0) barrier_arrive(empty);
  }

  static __device__ __forceinline__ void clear(float (&sums)[kMmas][kTileN / 2]) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  }

  // A thread's part of the bias, asked for before a tile's products so that nobody waits for it behind them.
  struct Bias {
    Vec<T, 2> pairs[Config::kBias ? kTileN / 8 : 1];

    template <typename R>
    __device__ __forceinline__ Bias(const Target<T, R>& target, const TmaPlace& tile) {
      if constexpr (Config::kBias) {
        const T* from = target.bias + tile.group * target.outs + tile.n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < kTileN / 8; ++j) pairs[j] = load<T, 2>(from + (tile.n + j * 8 < target.outs ? j * 8 : 0));
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

  struct End {  // what is left to do with sums that hold the bias
    using Activation = typename Config::Activation;
    static constexpr bool kBias = false, kResidual = Config::kResidual;
  };

  // The result from registers, four neighbouring lanes 64 bytes of a row. `image.at(m)` is where the channels of row m begin, or -1.
  template <typename R, typename Image>
  static __device__ __forceinline__ void write_rows(const Target<T, R>& target, const float (&sums)[kMmas][kTileN / 2], const TmaPlace& tile,
                                                    int part, const Image& image) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long at = image.at(tile.m + row(part, i, half));
        write_row<End, kTileN>(target, sums[i], half, tile.group, tile.n, at < 0 ? 0 : at, at >= 0);
      }
  }
};

// The other way than `load_matrices`.
__device__ __forceinline__ void store_matrices(unsigned smem, const unsigned (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// The result's way out of a warpgroup: panels of 64 rows x 64 channels of half types, rounded into one of kSlots places of shared memory, where
// kResidual finds the residual already, all of it on its way since the last tile, and stored from there by the copy engine. `image.where(m)` is the
// place of row m in the image.
template <typename Config>
struct TmaResult {
  using C = TmaTile<Config>;
  using T = typename Config::Element;
  using R = typename Config::Result;
  static constexpr bool kStaged = sizeof(R) == 2;
  static constexpr int kPanels = C::kMmas * C::kTileN / 64, kSlots = Config::kResidual && kPanels > 2 ? kPanels : 2;
  static constexpr int kPanel = 64 * C::kRow, kBytes = kStaged ? C::kConsumers * kSlots * kPanel : 0;
  static constexpr int kBarriers = C::kConsumers * kSlots;  // of each kind: a slot's residual has come, a slot is free

  unsigned address, full, empty;  // in shared memory, of this warpgroup's first slot
  int part, waiting;              // the slot that was stored last and not given back yet, or -1
  Ring<kSlots> ring;

  __device__ __forceinline__ TmaResult(unsigned first, unsigned barriers, int group)
      : address(first + group * kSlots * kPanel),
        full(barriers + group * kSlots * 8),
        empty(full + kBarriers * 8),
        part(group),
        waiting(-1) {}

  static __device__ __forceinline__ void init(unsigned barriers) {
    for (int i = 0; i < 2 * kBarriers; ++i) barrier_init(barriers + i * 8, 1);
  }

  // By one thread for each warpgroup: the residual of its part of a tile.
  template <typename Image>
  __device__ __forceinline__ void ask_residual(const TensorMap& residual, const TmaPlace& tile, int outs, const Image& image) {
    for (int i = 0; i < C::kMmas; ++i) {
      WindowPlace place = image.where(tile.m + (part * C::kMmas + i) * 64);
      for (int n = tile.n; n < tile.n + C::kTileN && n < outs; n += 64) {
        barrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
        barrier_expect(full + ring.stage * 8, kPanel);
        place.c = tile.group * outs + n;
        copy_windows<Config::kAxes>(address + ring.stage * kPanel, residual, full + ring.stage * 8, place, TapPlace{0, 0, 0});
        ring.next();
      }
    }
  }

  // Gives the last slot back to the residual: some time after the store, so that nobody waits for it.
  __device__ __forceinline__ void settle() {
    if (!kStaged || !Config::kResidual || waiting < 0 || threadIdx.x % C::kGroup != 0) return;
    give_back<0>();
    waiting = -1;
  }

  template <typename Image>
  __device__ __forceinline__ void write(const Target<T, R>& target, const TensorMap& y, const float (&sums)[C::kMmas][C::kTileN / 2],
                                        const TmaPlace& tile, const Image& image) {
    const bool leader = threadIdx.x % C::kGroup == 0;
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i) {
      WindowPlace place = {0, 0, 0, 0, 0};
      if (leader) place = image.where(tile.m + (part * C::kMmas + i) * 64);
#pragma unroll
      for (int p = 0; p < C::kTileN / 64; ++p) {
        const int n = tile.n + p * 64, channel = tile.group * target.outs + n;
        if (n >= target.outs) continue;
        if constexpr (Config::kResidual) {
          barrier_wait(full + ring.stage * 8, ring.parity);
        } else {
          if (leader) stores_read<kSlots - 1>();
          group_barrier(1 + part);
        }
        fill(target, sums[i], p);
        fence_async();
        group_barrier(1 + part);
        if (leader) {
          place.c = channel;
          store_windows<Config::kAxes>(address + ring.stage * kPanel, y, place);
          if (Config::kResidual && waiting >= 0) give_back<1>();
          waiting = ring.stage;
        }
        ring.next();
      }
    }
  }

 private:
  // To whoever brings the residual, once at most kLater stores, of other slots, have yet to be read.
  template <int kLater>
  __device__ __forceinline__ void give_back() {
    stores_read<kLater>();
    barrier_arrive(empty + waiting * 8);
  }

  // Panel p of the sums into the slot, four matrices of 8 x 8 at a time: two chunks of 16 rows. A row's chunks are exchanged as in all panels.
  __device__ __forceinline__ void fill(const Target<T, R>& target, const float (&sums)[C::kTileN / 2], int p) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x % C::kGroup / 32 * 16 + lane % 16;
    const unsigned slot = address + ring.stage * kPanel + row * C::kRow;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const unsigned at = slot + ((j + lane / 16) ^ row % 8) * 16;
      unsigned pieces[4];
      if constexpr (Config::kResidual) load_matrices(pieces, at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = sums + (p * 8 + j + i / 2) * 4 + i % 2 * 2;
        float v[2] = {from[0], from[1]};
        if constexpr (Config::kResidual) {
          float residual[2];
          widen_pair(residual[0], residual[1], pieces[i], T());
          v[0] += residual[0], v[1] += residual[1];
        }
        pieces[i] = narrow_pair(Config::Activation::forward(v[0], target.p, target.q), Config::Activation::forward(v[1], target.p, target.q), R());
      }
      store_matrices(at, pieces);
    }
  }
};

}  // namespace dnnarray
