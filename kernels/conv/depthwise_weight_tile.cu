// The weight gradient of a depthwise convolution from tiles in shared memory: dw[c, r, s] = the sum over n, p, q of
// dy[n, c, p, q] * x[n, c, p * stride + r - before, q * stride + s - before]. First stage: `parts` partial sums of each
// tap, (K, taps, parts), in float; they are added up by another launch, so that the same values give the same bits.
//
// Layout:  channels innermost in memory. A block owns kLanes vectors of kVector channels and walks over tiles of dy,
//          which it brings to shared memory with the inputs that they meet. A warp owns one row of the window and each
//          `copies`-th row of a tile; a lane owns one vector of each 32 / kLanes-th strip of kStrip columns, and the
//          sums of kSide taps.
// Needs:   pointers and channels aligned to 16 bytes; one plane of the window, kSide x kSide; kStride, and no dilation.
// Bound:   memory for small windows: x and dy once; float32 arithmetic for large ones. Sums in float32,
//          of a tile first and then of all: rounding grows with the terms added one after the other.

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kSide = 3;
  static constexpr int kStride = 1;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 4;
  static constexpr int kStrip = 7;
  static constexpr int kMostThreads = 256;
};
struct Arguments {
  int batch;
  int channels;
  int flip;
  int splits;
  int wide;
  int high;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_tile_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kStrip = Config::kStrip, kAcross = kWarp / kLanes;
constexpr int kSide = Config::kSide, kStride = Config::kStride, kChannels = kLanes * kVector;
constexpr int kWide = (kStrip - 1) * kStride + kSide;

extern __shared__ uint4 smem_memory[];

// sum[s] += the products of a strip of dy with the inputs that tap s reads.
__device__ __forceinline__ void add_strip(A (&sum)[kSide][kVector], const T* dy, const T* x) {
  A g[kStrip][kVector];
#pragma unroll
  for (int t = 0; t < kStrip; ++t) widen_all(g[t], load<T, kVector>(dy + t * kChannels));
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    A value[kVector];
    widen_all(value, load<T, kVector>(x + i * kChannels));
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
      if ((i - s) % kStride != 0 || i < s || (i - s) / kStride >= kStrip) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[s][j] += g[(i - s) / kStride][j] * value[j];
    }
  }
}

// Block b takes vectors of channels b % chunks and each `splits`-th tile of `high` x `wide` outputs from b / chunks on.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, A* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, copies = blockDim.x / kWarp / kSide;
  const int r = warp % kSide, copy = warp / kSide;
  const int chunks = (a.channels + kChannels - 1) / kChannels, strips = a.wide / kStrip;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first = by_chunk.rest * kChannels, rest = a.channels - first;
  const int tiles_w = (a.axes.w.out - 1) / a.wide + 1;
  const int tiles_h = (a.axes.h.out - 1) / a.high + 1;
  const int x_columns = (a.wide - 1) * kStride + kSide, x_rows = (a.high - 1) * kStride + kSide;
  T *smem_x = reinterpret_cast<T*>(smem_memory), *smem_dy = smem_x + x_rows * x_columns * kChannels;

  A sum[kSide][kVector] = {};
  const int tiles = a.batch * tiles_h * tiles_w;
  for (int tile = by_chunk.quotient; tile < tiles; tile += a.splits) {
    const Quotient by_w = divide(tile, tiles_w), by_h = divide(by_w.quotient, tiles_h);
    const int p = by_h.rest * a.high, q = by_w.rest * a.wide;
    const TileOfPixels of_x{p * kStride - a.axes.h.before, q * kStride - a.axes.w.before, x_rows, x_columns};
    const TileOfPixels of_dy{p, q, a.high, a.wide};
    __syncthreads();  // nobody needs what stands in shared memory any more
    bring_tile<kChannels, kChannels>(smem_x, x + by_h.quotient * a.x_strides.n + first, a.x_strides.h, a.x_strides.w,
                                     of_x, a.axes.h.space, a.axes.w.space, rest);
    bring_tile<kChannels, kChannels>(smem_dy, dy + by_h.quotient * a.y_strides.n + first, a.y_strides.h, a.y_strides.w,
                                     of_dy, a.axes.h.out, a.axes.w.out, rest);
    cp_async_wait_all();
    __syncthreads();
    const T *own_x = smem_x + lane % kLanes * kVector, *own_dy = smem_dy + lane % kLanes * kVector;
    A of_tile[kSide][kVector] = {};
    for (int row = copy; row < a.high; row += copies) {
      for (int strip = lane / kLanes; strip < strips; strip += kAcross) {
        const int from = (row * kStride + r) * x_columns + strip * kStrip * kStride;
        add_strip(of_tile, own_dy + (row * a.wide + strip * kStrip) * kChannels, own_x + from * kChannels);
      }
    }
#pragma unroll
    for (int s = 0; s < kSide; ++s)
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[s][j] += of_tile[s][j];
  }

  const int channel = first + lane % kLanes * kVector;
  partial += by_chunk.quotient * copies + copy;
#pragma unroll
  for (int s = 0; s < kSide; ++s) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
#pragma unroll
      for (int step = kLanes; step < kWarp; step *= 2) sum[s][j] += __shfl_xor_sync(kAllLanes, sum[s][j], step);
      const int tap = r * kSide + s, at = a.flip ? kSide * kSide - 1 - tap : tap;
      if (lane >= kLanes || channel >= a.channels) continue;
      partial[(static_cast<long long>(channel + j) * (kSide * kSide) + at) * a.splits * copies] = sum[s][j];
    }
  }
}
