// Weight gradients as products of pixels: what the kernels whose operands the copy engine brings have in common.
#pragma once

#include "dnnarray/conv.cuh"
#include "dnnarray/vec.cuh"

namespace dnnarray {

// Partial sums of a split, (groups K, taps C): channels of a group.
struct WeightSums {
  float* partial;
  int groups, outs, taps, channels;

  // Where the channels of a tap begin.
  __device__ __forceinline__ float* at(long long split, int group, int k, int tap) const {
    return partial + (((split * groups + group) * outs + k) * taps + tap) * static_cast<long long>(channels);
  }
};

// A thread's sums of 64 neighbouring channels, of two rows 8 apart, as wgmma leaves them; `left` channels are there.
// Not `store`: its assembly would hold back the products.
template <int kFirst, int kCount>
__device__ __forceinline__ void write_sums(float* out, const float (&sums)[kCount], int half, int left) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (column + 8 * j >= left) continue;
    *reinterpret_cast<Vec<float, 2>*>(out + column + 8 * j) = {{sums[kFirst + 4 * j + 2 * half], sums[kFirst + 4 * j + 2 * half + 1]}};
  }
}

}  // namespace dnnarray
