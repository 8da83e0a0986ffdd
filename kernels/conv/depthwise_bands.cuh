// What a warp of depthwise convolution by bands (conv/depthwise_band_sm90.cu) has of the weights.
#pragma once

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise_steps.cuh"

namespace dnnarray {

// The weights of a warp's kOwn channels, neighbours in memory, asked for before the first rows are; then in its part of
// shared memory.
template <typename T, int kOwn, int kTaps>
struct WarpWeights {
  static constexpr int kVectors = kOwn * kTaps * static_cast<int>(sizeof(T)) / 8, kEach = (kVectors - 1) / kWarp + 1;
  uint2 at[kEach];

  __device__ __forceinline__ WarpWeights(const T* w, int channels, int channel) {
    const uint2* from = reinterpret_cast<const uint2*>(w + static_cast<long long>(channel) * kTaps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int k = i * kWarp + threadIdx.x % kWarp;
      at[i] = k < kVectors && channel < channels ? from[k] : uint2{};
    }
  }
  __device__ __forceinline__ void put(unsigned smem) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int k = i * kWarp + threadIdx.x % kWarp;
      st_shared_v2_if(k < kVectors, smem + k * 8, at[i].x, at[i].y);
    }
    __syncwarp();
  }
};

// For each row of a window of kSide x kSide, w as a band: the first row of the matrix belongs to the strip's first
// pixel. Of the four places that a lane has of a band, four taps apart, one or two neighbours are inside of the window,
// or none where it is three wide.
template <typename T, int kSide, int kOwn>
struct Bands {
  static constexpr int kTaps = kSide * kSide;
  unsigned at[kSide][kOwn][2];

  __device__ __forceinline__ Bands(unsigned smem_w, bool flip) {
    const int lane = threadIdx.x % kWarp, column = lane / 8 + lane / 4 % 2 * 4, s = (lane - column) & 3;
    const int before = (s + column - lane % 4) / 4;  // places before the first one inside
    const bool both = s + 4 < kSide;
    const int way = flip ? -static_cast<int>(sizeof(T)) : static_cast<int>(sizeof(T));
    const int further = both ? 4 * way : 0, own = min(s, kSide - 1);  // never out of the warp's weights
    const unsigned start = smem_w + (flip ? (kTaps - 1) * static_cast<int>(sizeof(T)) : 0);
    // which bytes of the two taps, or of the first one's zeros, go where
    const bool none = s >= kSide;
    const unsigned low = none ? 0x3232 : before == 0 ? (both ? 0x5410 : 0x3210) : before == 1 ? 0x1032 : 0x3232;
    const unsigned high = none || before == 0 ? 0x3232
                          : before == 1       ? (both ? 0x3254 : 0x3232)
                                              : (both ? 0x5410 : 0x3210);
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      const unsigned place = start + (r * kSide + own) * way;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const unsigned tap = place + c * kTaps * sizeof(T), first = ld_shared_u16(tap),
                       second = ld_shared_u16(tap + further);
        at[r][c][0] = __byte_perm(first, second, low);
        at[r][c][1] = __byte_perm(first, second, high);
      }
    }
  }
};

}  // namespace dnnarray
