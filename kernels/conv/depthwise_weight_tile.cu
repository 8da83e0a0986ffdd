// The weight gradient of a depthwise convolution from tiles in shared memory: dw[c, r, s] = the sum over n, p, q of dy[n, c, p, q] *
// x[n, c, p * stride + r - before, q * stride + s - before]. First stage: `parts` partial sums of each tap, (K, taps, parts), in float;
// they are added up by another launch, so that the same values give the same bits.
//
// Layout:  channels innermost in memory. A block owns kLanes vectors of kVector channels and walks over tiles of dy, which it brings to
//          shared memory with the inputs that they meet. A warp owns one row of the window and each `copies`-th row of a tile; a lane owns one
//          vector of each 32 / kLanes-th strip of kStrip columns, and the sums of kSide taps.
// Needs:   pointers and channels aligned to 16 bytes; one plane of the window, kSide x kSide; kStride, and no dilation.
// Bound:   memory for small windows: x and dy once; float32 arithmetic for large ones. Sums in float32,
//          of a tile first and then of all: rounding grows with the terms added one after the other.

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/depthwise.cuh"

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
    DNNARRAY_ENTRY(const T* __restrict__ gmem_dy, const T* __restrict__ gmem_x, A* __restrict__ partial, long long batch,
                   long long channels, long long flip, long long splits, long long wide, long long high, long long x_n, long long x_h,
                   long long x_w, long long y_n, long long y_h, long long y_w, long long height, long long width, long long out_height,
                   long long out_width, long long before_h, long long before_w) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, copies = blockDim.x / kWarp / kSide;
  const int r = warp % kSide, copy = warp / kSide;
  const int chunks = (static_cast<int>(channels) + kChannels - 1) / kChannels, strips = static_cast<int>(wide) / kStrip;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first = by_chunk.rest * kChannels, rest = static_cast<int>(channels) - first;
  const int tiles_w = (static_cast<int>(out_width) - 1) / static_cast<int>(wide) + 1;
  const int tiles_h = (static_cast<int>(out_height) - 1) / static_cast<int>(high) + 1;
  const int x_columns = (static_cast<int>(wide) - 1) * kStride + kSide, x_rows = (static_cast<int>(high) - 1) * kStride + kSide;
  T *smem_x = reinterpret_cast<T*>(smem_memory), *smem_dy = smem_x + x_rows * x_columns * kChannels;

  A sum[kSide][kVector] = {};
  const int tiles = static_cast<int>(batch) * tiles_h * tiles_w;
  for (int tile = by_chunk.quotient; tile < tiles; tile += static_cast<int>(splits)) {
    const Quotient by_w = divide(tile, tiles_w), by_h = divide(by_w.quotient, tiles_h);
    const int p = by_h.rest * static_cast<int>(high), q = by_w.rest * static_cast<int>(wide);
    const TileOfPixels of_x{p * kStride - static_cast<int>(before_h), q * kStride - static_cast<int>(before_w), x_rows, x_columns};
    const TileOfPixels of_dy{p, q, static_cast<int>(high), static_cast<int>(wide)};
    __syncthreads();  // nobody needs what stands in shared memory any more
    bring_tile<kChannels, kChannels>(smem_x, gmem_x + by_h.quotient * x_n + first, x_h, x_w, of_x, static_cast<int>(height),
                                     static_cast<int>(width), rest);
    bring_tile<kChannels, kChannels>(smem_dy, gmem_dy + by_h.quotient * y_n + first, y_h, y_w, of_dy, static_cast<int>(out_height),
                                     static_cast<int>(out_width), rest);
    wait_for_all_brought();
    __syncthreads();
    const T *x = smem_x + lane % kLanes * kVector, *dy = smem_dy + lane % kLanes * kVector;
    A of_tile[kSide][kVector] = {};
    for (int row = copy; row < high; row += copies) {
      for (int strip = lane / kLanes; strip < strips; strip += kAcross) {
        const int from = (row * kStride + r) * x_columns + strip * kStrip * kStride;
        add_strip(of_tile, dy + (row * static_cast<int>(wide) + strip * kStrip) * kChannels, x + from * kChannels);
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
      const int tap = r * kSide + s, at = flip ? kSide * kSide - 1 - tap : tap;
      if (lane >= kLanes || channel >= channels) continue;
      partial[(static_cast<long long>(channel + j) * (kSide * kSide) + at) * splits * copies] = sum[s][j];
    }
  }
}
