// Sums of products of numbers in parts (parts.cuh) on Hopper's tensor cores: first * first, and where there are two
// parts first * second + second * first, which is 2^-kLater of the result. The product of two second parts is below the
// last place and left out.
//
// The tensor cores cut off what a sum's last place does not hold, always towards zero. So the large products of a stage
// are summed by themselves and added to the total by rounding additions, while the small ones, whose last places do not
// matter, run on.
#pragma once

#include "dnnarray/mma/warpgroup.cuh"
#include "conv/parts.cuh"

namespace dnnarray {

// kMmas instructions of kCount sums a thread.
template <int kParts, int kMmas, int kCount>
struct PartSums;

template <int kMmas, int kCount>
struct PartSums<1, kMmas, kCount> {
  float total[kMmas][kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[i][j] = 0;
  }
  // A stage: `stage.multiply(sums, a, b)` starts the products of parts a and b as one group, `before()` gives back the
  //          stage before this one.
  template <typename Stage, typename Before>
  __device__ __forceinline__ void add(const Stage& stage, const Before& before) {
    stage.multiply(total, 0, 0);
    wgmma_wait_group<1>();
    before();
  }
  __device__ __forceinline__ void finish() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < kMmas; ++i) hold(total[i]);
  }
};

template <int kMmas, int kCount>
struct PartSums<2, kMmas, kCount> {
  float total[kMmas][kCount], large[kMmas][kCount], small[kMmas][kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kMmas; ++i)
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[i][j] = large[i][j] = small[i][j] = 0;
  }
  template <typename Stage, typename Before>
  __device__ __forceinline__ void add(const Stage& stage, const Before& before) {
    stage.multiply(large, 0, 0);
    wgmma_wait_group<1>();
    before();
    stage.multiply(small, 0, 1);
    stage.multiply(small, 1, 0);
    wgmma_wait_group<2>();
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      hold(large[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        total[i][j] += large[i][j];
        large[i][j] = 0;
      }
      hold(large[i]);  // the zeros are there before the next products' fence
    }
  }
  __device__ __forceinline__ void finish() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      hold(small[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) total[i][j] += small[i][j] * kSecond;
    }
  }
};

}  // namespace dnnarray
