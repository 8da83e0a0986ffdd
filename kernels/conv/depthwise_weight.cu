// The weight gradient of a depthwise convolution: dw[k, r] = the sum over n and p of dy[n, k, p] * x[n, k / m, p * stride + r * dilation -
// before]. First stage: `parts` partial sums of each tap, (K, taps, parts), in float; they are added up by another launch, so that the same
// values give the same bits.
//
// Layout:  memory in any dense order, given by strides. Channels-last: a lane owns kVector neighbouring channels and, of every row of dy,
//          each 32 / kLanes-th strip of kStrip outputs; a warp owns one row of the window (kSide 0: one tap) for a share of dy's rows. The
//          warps of a block walk over the same rows with different rows of the window, and their inputs meet in the first-level cache.
//          Channels-first: the same with one channel.
// Needs:   pointers and channels aligned to kVector elements; kSide, where not 0, is the window's last extent, with dilation 1.
// Bound:   memory for small windows: x and dy once; float32 arithmetic for large ones. Sums in float32 (double for double).

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kPlain = true;
  static constexpr int kSide = 3;
  static constexpr int kStride = 1;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kStrip = 4;
  static constexpr int kMostThreads = 256;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kStrip = Config::kStrip, kAcross = kWarp / kLanes;
constexpr int kTaps = Config::kSide > 0 ? Config::kSide : 1;               // of the window's row that a warp owns
constexpr int kStride = Config::kSide > 0 ? Config::kStride : 1;
constexpr int kWide = Config::kSide > 0 ? (kStrip - 1) * kStride + kTaps : kStrip;  // inputs of a strip

struct Kind {
  static constexpr bool kGradient = false, kPlain = Config::kPlain;
};
struct PlainKind {
  static constexpr bool kGradient = false, kPlain = true;
};
using V = Vec<T, kVector>;
using SpatialAxis = ConvAxis<Kind>;

// sum[s] += the products of a strip of dy with the inputs that tap s reads.
__device__ __forceinline__ void add_strip(A (&sum)[kTaps][kVector], const V (&dy)[kStrip], const V (&x)[kWide]) {
  A g[kStrip][kVector];
#pragma unroll
  for (int t = 0; t < kStrip; ++t) widen_all(g[t], dy[t]);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    A value[kVector];
    widen_all(value, x[i]);
#pragma unroll
    for (int s = 0; s < kTaps; ++s) {
      if ((i - s) % kStride != 0 || i < s || (i - s) / kStride >= kStrip) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[s][j] += g[(i - s) / kStride][j] * value[j];
    }
  }
}

// The lanes of a warp that have the same channels add up what they have, and the first of them writes it.
__device__ __forceinline__ void finish(A (&sum)[kTaps][kVector], A* partial, int lane, bool there, int channel, long long taps, int tap,
                                       bool flip, long long parts) {
#pragma unroll
  for (int s = 0; s < kTaps; ++s) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
#pragma unroll
      for (int step = kLanes; step < kWarp; step *= 2) sum[s][j] += __shfl_xor_sync(kAllLanes, sum[s][j], step);
      const long long at = flip ? taps - 1 - (tap + s) : tap + s;
      if (there && lane < kLanes) partial[((channel + j) * taps + at) * parts] = sum[s][j];
    }
  }
}

// Block b takes vectors of channels b % chunks and share b / chunks of the rows. Pairs hold (output, input) extents, (window, stride) and
// (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_dy, const T* __restrict__ gmem_x, A* __restrict__ partial, long long batch,
                   long long channels, long long multiplier, long long flip, long long splits, long long groups, long long x_n,
                   long long x_c, long long x_d, long long x_h, long long x_w, long long y_n, long long y_c, long long y_d, long long y_h,
                   long long y_w, long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0,
                   long long w1, long long w2) {
  const SpatialAxis d{high(d0), low(d0), high(d1), low(d1), high(d2), low(d2)}, h{high(h0), low(h0), high(h1), low(h1), high(h2), low(h2)},
      w{high(w0), low(w0), high(w1), low(w1), high(w2), low(w2)};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, copies = blockDim.x / kWarp / static_cast<int>(groups);
  const int across = w.window / kTaps, taps = d.window * h.window * w.window;
  const int member = blockIdx.y * static_cast<int>(groups) + warp % static_cast<int>(groups), copy = warp / static_cast<int>(groups);
  if (member * kTaps >= taps) return;
  const int s = Config::kSide > 0 ? 0 : member % across, r = member / across % h.window, o = member / across / h.window;

  const int chunks = (static_cast<int>(channels) + kLanes * kVector - 1) / (kLanes * kVector);
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int channel = (by_chunk.rest * kLanes + lane % kLanes) * kVector;
  const bool there = channel < channels;
  const DepthwiseChannels<Kind> of_x{channel, static_cast<int>(multiplier)};
  const DepthwiseChannels<PlainKind> of_y{channel, 1};
  const int rows = static_cast<int>(batch) * d.out * h.out, share = (rows - 1) / static_cast<int>(splits) + 1;
  const int first = min(rows, by_chunk.quotient * share), end = min(rows, first + share);

  A sum[kTaps][kVector] = {};
  for (int row = first + copy; there && row < end; row += copies) {
    const Quotient by_h = divide(row, h.out), by_d = divide(by_h.quotient, d.out);
    const int at_d = d.input(by_d.rest, o), at_h = h.input(by_h.rest, r);
    if (at_d < 0 || at_h < 0) continue;
    const ImagePlane<T, kVector, Kind> x{gmem_x + by_d.quotient * x_n + at_d * x_d, x_h, x_w, x_c, w.space};
    const ImagePlane<T, kVector, PlainKind> dy{gmem_dy + by_d.quotient * y_n + by_d.rest * y_d, y_h, y_w, y_c, w.out};
    for (int q = lane / kLanes * kStrip; q < w.out; q += kAcross * kStrip) {
      V reg_dy[kStrip], reg_x[kWide];
      dy.load_row(reg_dy, q, by_h.rest, h.out, of_y, 0);
      const int begin = q * w.stride + s * w.dilation - w.before;
      x.load_row(reg_x, begin, at_h, h.space, of_x, 0, Config::kSide > 0 ? 1 : w.stride);
      add_strip(sum, reg_dy, reg_x);
    }
  }
  finish(sum, partial + by_chunk.quotient * copies + copy, lane, there, channel, taps, member * kTaps, flip != 0, splits * copies);
}
