// The weight gradient of an input of few channels: partial sums of dw[k, r, s, c] = sum over n, p and q of dy[n, p, q, k] * x[n, p * stride + r *
// dilation - before, q * stride + s - before, c], as products whose sum runs over pixels.
//
// Layout:  x and dy channels-last in memory, dense; partial (splits, K, R S C) float32, which split_sums.cu adds up in a fixed order. A block takes
//          regions of kSide x kSide pixels of dy and 64 of its channels, every gridDim.x-th: both dy and the pixels of x that they meet come to
//          shared memory. Columns are (r; s and c filled up to kColumns), 8 of them a matrix; a warp has every eighth matrix, kMatrices at most,
//          of all 64 channels.
// Needs:   sm_80; K a multiple of 8, pointers aligned to 16 bytes; a dilation of 1 along the last axis, no third one.
// Bound:   the tensor cores. Sums in float32.

#include "dnnarray/conv_thin.cuh"
#include "dnnarray/mma.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kColumns = 24;
  static constexpr int kMatrices = 3;
};
#define DNNARRAY_ENTRY conv_thin_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kThreads = 256, kWarps = kThreads / 32, kSide = 16, kChannels = 64, kChunks = Config::kColumns / 8, kMatrices = Config::kMatrices;
constexpr int kPitch = kChannels * 2 + 16;  // bytes of a pixel of dy in shared memory

extern __shared__ __align__(16) char smem_memory[];

struct Arguments {
  const T* dy;
  float* partial;
  ConvAxes axes;
  ThinPixels<T, kSide, Config::kColumns> pixels;
  int outs, first;  // channels of dy, the first of this block
};

// The region's part of dy, zeros outside of the image.
__device__ __forceinline__ void load_gradient(const Arguments& a, const ThinRegion& region) {
  for (int i = threadIdx.x; i < kSide * kSide * (kChannels / 8); i += kThreads) {
    const int chunk = i % (kChannels / 8), pixel = i / (kChannels / 8), p = region.p + pixel / kSide, q = region.q + pixel % kSide;
    const bool there = p < a.axes.h.out && q < a.axes.w.out && a.first + chunk * 8 < a.outs;
    const long long at = ((region.image * a.axes.h.out + p) * a.axes.w.out + q) * a.outs + a.first + chunk * 8;
    copy_async(shared_address(smem_memory + pixel * kPitch + chunk * 16), a.dy + (there ? at : 0), there);
  }
  copy_commit();
}

__device__ __forceinline__ unsigned pair_of(const char* first, const char* second) {
  return *reinterpret_cast<const unsigned short*>(first) | static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(second)) << 16;
}

__device__ __forceinline__ void multiply(const Arguments& a, const char* pixels, float (&sums)[kMatrices][kChannels / 16][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, step = a.pixels.step(), matrices = a.axes.h.window * kChunks;
  const unsigned gradient = shared_address(smem_memory) + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
  const char* from[kMatrices];
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    const int matrix = min(warp + j * kWarps, matrices - 1);
    from[j] = pixels + matrix / kChunks * a.pixels.tap_row() + (matrix % kChunks * 8 + lane / 4) * 2 + lane % 4 * 2 * step;
  }
  for (int p = 0; p < kSide; ++p) {
    unsigned left[kChannels / 16][4];
#pragma unroll
    for (int i = 0; i < kChannels / 16; ++i) load_matrices_transposed(gradient + p * kSide * kPitch + i * 32, left[i]);
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      const unsigned low = pair_of(from[j], from[j] + step), high = pair_of(from[j] + 8 * step, from[j] + 9 * step);
#pragma unroll
      for (int i = 0; i < kChannels / 16; ++i) Mma<T>::add(sums[j][i], left[i], low, high);
      from[j] += a.pixels.down();
    }
  }
}

__device__ __forceinline__ void write(const Arguments& a, const float (&sums)[kMatrices][kChannels / 16][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = a.axes.w.window * a.pixels.channels, all = a.axes.h.window * row;
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    const int matrix = warp + j * kWarps, r = matrix / kChunks, column = matrix % kChunks * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kChannels / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = a.first + i * 16 + lane / 4 + e / 2 * 8, place = column + e % 2;
        if (r >= a.axes.h.window || k >= a.outs || place >= row) continue;
        a.partial[(static_cast<long long>(blockIdx.x) * a.outs + k) * all + r * row + place] = sums[j][i][e];
      }
  }
}

// `channels` and `outs` of x and dy; a split for each of gridDim.x.
extern "C" __global__ void __launch_bounds__(kThreads, 2) DNNARRAY_ENTRY(
    const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial, long long regions, long long channels, long long outs,
    long long regions_h, long long regions_w, long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0,
    long long w1, long long w2) {
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const Arguments a = {dy, partial, axes, {x, axes, static_cast<int>(channels)}, static_cast<int>(outs), static_cast<int>(blockIdx.y) * kChannels};
  char* const pixels = smem_memory + kSide * kSide * kPitch;
  float sums[kMatrices][kChannels / 16][4] = {};
  for (long long i = blockIdx.x; i < regions; i += gridDim.x) {
    const ThinRegion region = ThinRegion::of(i, static_cast<int>(regions_h), static_cast<int>(regions_w), kSide);
    __syncthreads();
    load_gradient(a, region);
    a.pixels.load<kThreads>(pixels, region.image, region.p, region.q);
    copy_wait<0>();
    __syncthreads();
    multiply(a, pixels, sums);
  }
  write(a, sums);
}
