// Tiles of convolutions the other way round: channels of the result are the rows of the products, and places their
// columns.
#pragma once

#include "conv/panels.cuh"

namespace dnnarray {

// 64 channels x kPlaces places of a warpgroup. Products of 64 places x 64 channels ask for all that shared memory
// gives, 128 bytes a cycle, and hold up whatever else goes through it (inputs, residuals, lanes that exchange results);
// with 128 places as columns they ask for 96. Thread t of the warpgroup holds, of channel t / 32 * 16 + t % 32 / 4 (+ 8
// for odd i / 2), the place i / 4 * 8 + t % 4 * 2 + i % 2 as sum i.
template <typename Config>
struct SwappedTile {
  using C = TmaTile<Config>;
  using T = typename Config::Element;
  using R = typename Config::Result;
  static constexpr int kPlaces = Config::kTileM / C::kConsumers, kPasses = kPlaces / 16;
  static_assert(Config::kTileN == 64 && sizeof(R) == 2, "a panel's row is 64 channels of a half type");
  using Sums = float[kPlaces / 2];

  static __device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < kPlaces / 2; ++i) sums[i] = 0;
  }

  // Issues the products of one tap.
  static __device__ __forceinline__ void multiply(Sums& sums, unsigned places, unsigned weight) {
    wgmma_fence();
    const unsigned long long a = C::kTransposedWeight ? transposed_panel(weight, C::kTileK * C::kRow) : panel(weight),
                             b = panel(places);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      Wgmma<T, C::kTransposedWeight, false, kPlaces>::run(sums, a + (C::kTransposedWeight ? 128 : 2) * k, b + 2 * k);
    wgmma_commit_group();
  }

  static __device__ __forceinline__ void finish(Sums& sums) {
    wgmma_wait_group<0>();
    hold(sums);
  }

  // Of the two channels of a thread.
  struct Bias {
    float of[2];

    __device__ __forceinline__ Bias(const Target<T, R>& target, const TmaPlace& tile) {
      const int channel = tile.n + threadIdx.x % C::kGroup / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool there = Config::kBias && channel + 8 * i < target.outs;
        of[i] = there ? widen(target.bias[tile.group * target.outs + channel + 8 * i]) : 0.0f;
      }
    }

    __device__ __forceinline__ void add(Sums& sums) const {
      if constexpr (Config::kBias) {
#pragma unroll
        for (int i = 0; i < kPlaces / 2; ++i) sums[i] += of[i / 2 % 2];
      }
    }
  };

  // The residual from a panel: a row of 128 bytes for each place, its chunks exchanged as in all panels.
  static __device__ __forceinline__ void add(Sums& sums, unsigned panel) {
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      unsigned pieces[4];
      ldmatrix_x4_trans(matrices(panel, j), pieces);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float residual[2];
        widen_pair(residual[0], residual[1], pieces[k], T());
        sums[8 * j + 2 * k] += residual[0], sums[8 * j + 2 * k + 1] += residual[1];
      }
    }
  }

  // The result into such a panel. What a warp writes is what it alone has read there.
  static __device__ __forceinline__ void fill(const Target<T, R>& target, const Sums& sums, unsigned panel) {
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
      unsigned pieces[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        pieces[k] = Finished<typename Config::Activation>::pair(sums[8 * j + 2 * k], sums[8 * j + 2 * k + 1], target.p,
                                                                target.q, R());
      }
      stmatrix_x4_trans(matrices(panel, j), pieces);
    }
  }

  // Where in memory the places begin of which this thread writes a chunk: eight neighbouring lanes a row.
  struct Rows {
    long long at[kPasses];

    template <typename Image>
    __device__ __forceinline__ Rows(const TmaPlace& tile, const Image& image) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) at[i] = image.at(tile.m + row(i));
    }

    static __device__ __forceinline__ int row(int pass) {
      return pass * 16 + static_cast<int>(threadIdx.x) % C::kGroup / 8;
    }
  };

  // From the panel to memory, once all warps have filled it.
  static __device__ __forceinline__ void write(const Target<T, R>& target, const TmaPlace& tile, const Rows& rows,
                                               const char* panel) {
    const int chunk = threadIdx.x % 8, channel = tile.n + chunk * 8;
    R* to = target.y + static_cast<long long>(tile.group) * target.outs + channel;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int row = Rows::row(i);
      const auto result =
          load<unsigned, 4>(reinterpret_cast<const unsigned*>(panel + row * C::kRow + (chunk ^ row % 8) * 16));
      if (rows.at[i] >= 0 && channel < target.outs) store(reinterpret_cast<unsigned*>(to + rows.at[i]), result);
    }
  }

 private:
  // Where a lane's row of four matrices of 8 x 8 lies: this warp's 16 channels of places 16 j and behind.
  static __device__ __forceinline__ unsigned matrices(unsigned panel, int j) {
    const int lane = threadIdx.x % 32, place = 16 * j + lane / 16 * 8 + lane % 8,
              chunk = threadIdx.x % C::kGroup / 32 * 2 + lane / 8 % 2;
    return panel + place * C::kRow + (chunk ^ lane % 8) * 16;
  }
};

}  // namespace dnnarray
