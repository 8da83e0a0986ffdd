// Depthwise convolution from tiles in shared memory: y[n, c, p] = f(sum over r of x[n, c, p * stride + r - before] * w[c, r] + bias[c] +
// residual). The input gradient of a stride of 1 is the same with the weights turned round.
//
// Layout:  channels innermost in memory, w (K, taps). A block owns kLanes vectors of kVector channels of a tile of outputs, `across` x `down`
//          times kStrip x kRows of them, and brings the inputs that the tile reads, halo included, to shared memory by copies that pass no
//          registers; other blocks of the multiprocessor compute meanwhile. A thread computes kRows x kStrip outputs of kVector
//          channels, one row of inputs in registers. Weights stand in shared memory as float; a block stays for many tiles.
// Needs:   pointers and channels aligned to 16 bytes; stride kStride and no dilation along the last axis, whose window is kSide long; no
//          dilation along the second last.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32 (double for double).

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/depthwise.cuh"

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
#define DNNARRAY_ENTRY conv_depthwise_tile_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kSide = Config::kSide, kStride = Config::kStride;
constexpr int kRows = Config::kRows, kStrip = Config::kStrip, kChannels = kLanes * kVector;
constexpr int kWide = (kStrip - 1) * kStride + kSide;        // inputs of a strip in a row
// Elements from pixel to pixel: neighbouring strips stand in other banks.
constexpr int kPixel = kChannels + (kStrip * kStride % 2 == 0 && kChannels * sizeof(T) % 128 ? 16 / sizeof(T) : 0);

struct Kind {
  static constexpr bool kGradient = false, kPlain = true;
};
using SpatialAxis = ConvAxis<Kind>;

extern __shared__ uint4 smem_memory[];

// What one plane of the window adds to a thread's outputs, whose inputs begin at smem_x.
__device__ __forceinline__ void add_plane(A (&sum)[kRows][kStrip][kVector], const T* smem_x, int pitch, const SpatialAxis& h,
                                          const A* smem_w) {
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
                                           const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu>& finish, long long y,
                                           long long y_h, long long y_w, int rows, int columns) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      if (m < rows && t < columns) finish.put(sum[m][t], y + m * y_h + t * y_w);
    }
  }
}

// Block b takes channels b % chunks and every so many of the tiles. Pairs hold (output, input) extents, (window, stride) and
// (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, Config::kBlocks) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long batch, long long channels, long long flip, long long across, long long down, long long x_n,
    long long x_d, long long x_h, long long x_w, long long y_n, long long y_d, long long y_h, long long y_w, long long d0, long long d1,
    long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2) {
  const SpatialAxis d{high(d0), low(d0), high(d1), low(d1), high(d2), low(d2)}, h{high(h0), low(h0), high(h1), low(h1), high(h2), low(h2)},
      w{high(w0), low(w0), high(w1), low(w1), high(w2), low(w2)};
  const int taps = d.window * h.window * kSide, lane = threadIdx.x % kLanes, spot = threadIdx.x / kLanes;
  const int chunks = (static_cast<int>(channels) + kChannels - 1) / kChannels;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first = by_chunk.rest * kChannels, channel = first + lane * kVector;
  A* smem_w = reinterpret_cast<A*>(smem_memory);
  T* smem_x = reinterpret_cast<T*>(smem_w + taps * kChannels);
  stage_weights<kChannels>(smem_w, gmem_w, first, static_cast<int>(channels), taps, flip != 0);

  const int wide = static_cast<int>(across) * kStrip, high = static_cast<int>(down) * kRows;
  const int tiles_w = (w.out + wide - 1) / wide, tiles_h = (h.out + high - 1) / high;
  const int y_row = spot / static_cast<int>(across) * kRows, y_column = spot % static_cast<int>(across) * kStrip;
  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{gmem_residual, gmem_y};
  const int tiles = static_cast<int>(batch) * d.out * tiles_h * tiles_w, step = gridDim.x / chunks;
  for (int tile = by_chunk.quotient; tile < tiles; tile += step) {
    const Quotient by_w = divide(tile, tiles_w), by_h = divide(by_w.quotient, tiles_h), by_d = divide(by_h.quotient, d.out);
    const int p = by_h.rest * high, q = by_w.rest * wide;
    const TileOfPixels window{p * h.stride - h.before, q * kStride - w.before, (high - 1) * h.stride + h.window,
                              (wide - 1) * kStride + kSide};
    const bool busy = y_row < high && p + y_row < h.out && q + y_column < w.out && channel < channels;
    A sum[kRows][kStrip][kVector];
    begin_sums(sum, channel < channels ? gmem_bias : nullptr, channel);
    for (int o = 0; o < d.window; ++o) {
      const int at_d = d.input(by_d.rest, o);
      if (at_d < 0) continue;
      __syncthreads();  // nobody needs what stands in shared memory any more
      const T* from_x = gmem_x + by_d.quotient * x_n + at_d * x_d + first;
      bring_tile<kChannels, kPixel>(smem_x, from_x, x_h, x_w, window, h.space, w.space, static_cast<int>(channels) - first);
      wait_for_all_brought();
      __syncthreads();
      const T* from = smem_x + (y_row * h.stride * window.columns + y_column * kStride) * kPixel + lane * kVector;
      if (busy) add_plane(sum, from, window.columns * kPixel, h, smem_w + o * h.window * kSide * kChannels + lane * kVector);
    }
    if (!busy) continue;
    const long long y = by_d.quotient * y_n + by_d.rest * y_d + (p + y_row) * y_h + (q + y_column) * y_w + channel;
    const bool whole = p + y_row + kRows <= h.out && q + y_column + kStrip <= w.out;
    if (whole) {
      store_tile(sum, finish, y, y_h, y_w, kRows, kStrip);
    } else {
      store_tile(sum, finish, y, y_h, y_w, h.out - p - y_row, w.out - q - y_column);
    }
  }
}
