// Depthwise convolution from tiles in shared memory: y[n, c, p] = f(sum over r of x[n, c, p * stride + r - before] *
// w[c, r] + bias[c] + residual). The input gradient of a stride of 1 is the same with the weights turned round.
//
// Layout:  channels innermost in memory, w (K, taps). A block owns kLanes vectors of kVector channels of a tile of
//          outputs, `across` x `down` times kStrip x kRows of them, and brings the inputs that the tile reads, halo
//          included, to shared memory by copies that pass no registers; other blocks of the multiprocessor compute
//          meanwhile. A thread computes kRows x kStrip outputs of kVector channels, one row of inputs in registers.
//          Weights stand in shared memory as float; a block stays for many tiles.
// Needs:   pointers and channels aligned to 16 bytes; stride kStride and no dilation along the last axis, whose window
//          is kSide long; no dilation along the second last.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32 (double for
//          double).

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 3;
  static constexpr int kStride = 1;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 4;
  static constexpr int kStrip = 4;
  static constexpr int kMostThreads = 256;
  static constexpr int kBlocks = 2;
};
struct Arguments {
  int batch;
  int channels;
  int flip;
  int across;
  int down;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_tile_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kSide = Config::kSide, kStride = Config::kStride;
constexpr int kRows = Config::kRows, kStrip = Config::kStrip, kChannels = kLanes * kVector;
constexpr int kWide = (kStrip - 1) * kStride + kSide;  // inputs of a strip in a row
// Elements from pixel to pixel: neighbouring strips stand in other banks.
constexpr int kPixel = kChannels + (kStrip * kStride % 2 == 0 && kChannels * sizeof(T) % 128 ? 16 / sizeof(T) : 0);

struct Kind {
  static constexpr bool kGradient = false, kPlain = true;
};
using SpatialAxis = DepthwiseAxis<Kind>;

extern __shared__ uint4 smem_memory[];

// What one plane of the window adds to a thread's outputs, whose inputs begin at smem_x.
__device__ __forceinline__ void add_plane(A (&sum)[kRows][kStrip][kVector], const T* smem_x, int pitch,
                                          const SpatialAxis& h, const A* smem_w) {
  const int rows = (kRows - 1) * h.stride + h.window;
  for (int i = 0; i < rows; ++i) {
    A x[kWide][kVector];
#pragma unroll
    for (int k = 0; k < kWide; ++k) widen_all(x[k], load<T, kVector>(smem_x + i * pitch + k * kPixel));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int r = i - m * h.stride;
      if (r < 0 || r >= h.window) continue;
#pragma unroll
      for (int s = 0; s < kSide; ++s) {
        const Vec<A, kVector> w = load<A, kVector>(smem_w + (r * kSide + s) * kChannels);
#pragma unroll
        for (int t = 0; t < kStrip; ++t) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) sum[m][t][j] += x[t * kStride + s][j] * w.at[j];
        }
      }
    }
  }
}

__device__ __forceinline__ void store_tile(const A (&sum)[kRows][kStrip][kVector],
                                           const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu>& finish,
                                           long long y, long long y_h, long long y_w, int rows, int columns) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      if (m < rows && t < columns) finish.put(sum[m][t], y + m * y_h + t * y_w);
    }
  }
}

// Block b takes channels b % chunks and every so many of the tiles.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const SpatialAxis d(a.axes.d), h(a.axes.h), w(a.axes.w);
  const int taps = d.window * h.window * kSide, lane = threadIdx.x % kLanes, spot = threadIdx.x / kLanes;
  const int chunks = (a.channels + kChannels - 1) / kChannels;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first = by_chunk.rest * kChannels, channel = first + lane * kVector;
  A* smem_w = reinterpret_cast<A*>(smem_memory);
  T* smem_x = reinterpret_cast<T*>(smem_w + taps * kChannels);
  stage_weights<kChannels>(smem_w, weight, first, a.channels, taps, a.flip != 0);

  const int wide = a.across * kStrip, high = a.down * kRows;
  const int tiles_w = (w.out + wide - 1) / wide, tiles_h = (h.out + high - 1) / high;
  const int y_row = spot / a.across * kRows, y_column = spot % a.across * kStrip;
  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{residual, y};
  const int tiles = a.batch * d.out * tiles_h * tiles_w, step = gridDim.x / chunks;
  for (int tile = by_chunk.quotient; tile < tiles; tile += step) {
    const Quotient by_w = divide(tile, tiles_w), by_h = divide(by_w.quotient, tiles_h),
                   by_d = divide(by_h.quotient, d.out);
    const int p = by_h.rest * high, q = by_w.rest * wide;
    const TileOfPixels window{p * h.stride - h.before, q * kStride - w.before, (high - 1) * h.stride + h.window,
                              (wide - 1) * kStride + kSide};
    const bool busy = y_row < high && p + y_row < h.out && q + y_column < w.out && channel < a.channels;
    A sum[kRows][kStrip][kVector];
    begin_sums(sum, channel < a.channels ? bias : nullptr, channel);
    for (int o = 0; o < d.window; ++o) {
      const int at_d = d.input(by_d.rest, o);
      if (at_d < 0) continue;
      __syncthreads();  // nobody needs what stands in shared memory any more
      const T* from_x = x + by_d.quotient * a.x_strides.n + at_d * a.x_strides.d + first;
      bring_tile<kChannels, kPixel>(smem_x, from_x, a.x_strides.h, a.x_strides.w, window, h.space, w.space,
                                    a.channels - first);
      cp_async_wait_all();
      __syncthreads();
      const T* from = smem_x + (y_row * h.stride * window.columns + y_column * kStride) * kPixel + lane * kVector;
      if (busy)
        add_plane(sum, from, window.columns * kPixel, h, smem_w + o * h.window * kSide * kChannels + lane * kVector);
    }
    if (!busy) continue;
    const long long to = by_d.quotient * a.y_strides.n + by_d.rest * a.y_strides.d + (p + y_row) * a.y_strides.h +
                         (q + y_column) * a.y_strides.w + channel;
    const bool whole = p + y_row + kRows <= h.out && q + y_column + kStrip <= w.out;
    if (whole) {
      store_tile(sum, finish, to, a.y_strides.h, a.y_strides.w, kRows, kStrip);
    } else {
      store_tile(sum, finish, to, a.y_strides.h, a.y_strides.w, h.out - p - y_row, w.out - q - y_column);
    }
  }
}
