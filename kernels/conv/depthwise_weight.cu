// The weight gradient of a depthwise convolution: dw[k, r] = the sum over n and p of dy[n, k, p] * x[n, k / m, p *
// stride + r * dilation - before]. First stage: `parts` partial sums of each tap, (K, taps, parts), in float; they are
// added up by another launch, so that the same values give the same bits.
//
// Layout:  memory in any dense order, given by strides. Channels-last: a lane owns kVector neighbouring channels and,
//          of every row of dy, each 32 / kLanes-th strip of kStrip outputs; a warp owns one row of the window (kSide 0:
//          one tap) for a share of dy's rows. The warps of a block walk over the same rows with different rows of the
//          window, and their inputs meet in the first-level cache. Channels-first: the same with one channel.
// Needs:   pointers and channels aligned to kVector elements; kSide, where not 0, is the window's last extent, with
//          dilation 1.
// Bound:   memory for small windows: x and dy once; float32 arithmetic for large ones. Sums in float32 (double for
//          double).

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise.cuh"

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
struct Arguments {
  int batch;
  int channels;
  int multiplier;
  int flip;
  int splits;
  int groups;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kStrip = Config::kStrip, kAcross = kWarp / kLanes;
constexpr int kTaps = Config::kSide > 0 ? Config::kSide : 1;  // of the window's row that a warp owns
constexpr int kStride = Config::kSide > 0 ? Config::kStride : 1;
constexpr int kWide = Config::kSide > 0 ? (kStrip - 1) * kStride + kTaps : kStrip;  // inputs of a strip

struct Kind {
  static constexpr bool kGradient = false, kPlain = Config::kPlain;
};
struct PlainKind {
  static constexpr bool kGradient = false, kPlain = true;
};
using V = Vec<T, kVector>;
using SpatialAxis = DepthwiseAxis<Kind>;

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
__device__ __forceinline__ void finish(A (&sum)[kTaps][kVector], A* partial, int lane, bool there, int channel,
                                       long long taps, int tap, bool flip, long long parts) {
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

// Block b takes vectors of channels b % chunks and share b / chunks of the rows. Pairs hold (output, input) extents,
// (window, stride) and (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, A* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  const SpatialAxis d(a.axes.d), h(a.axes.h), w(a.axes.w);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, copies = blockDim.x / kWarp / a.groups;
  const int across = w.window / kTaps, taps = d.window * h.window * w.window;
  const int member = blockIdx.y * a.groups + warp % a.groups, copy = warp / a.groups;
  if (member * kTaps >= taps) return;
  const int s = Config::kSide > 0 ? 0 : member % across, r = member / across % h.window, o = member / across / h.window;

  const int chunks = (a.channels + kLanes * kVector - 1) / (kLanes * kVector);
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int channel = (by_chunk.rest * kLanes + lane % kLanes) * kVector;
  const bool there = channel < a.channels;
  const DepthwiseChannels<Kind> of_x{channel, a.multiplier};
  const DepthwiseChannels<PlainKind> of_y{channel, 1};
  const int rows = a.batch * d.out * h.out, share = (rows - 1) / a.splits + 1;
  const int first = min(rows, by_chunk.quotient * share), end = min(rows, first + share);

  A sum[kTaps][kVector] = {};
  for (int row = first + copy; there && row < end; row += copies) {
    const Quotient by_h = divide(row, h.out), by_d = divide(by_h.quotient, d.out);
    const int at_d = d.input(by_d.rest, o), at_h = h.input(by_h.rest, r);
    if (at_d < 0 || at_h < 0) continue;
    const ImagePlane<T, kVector, Kind> plane_x{x + by_d.quotient * a.x_strides.n + at_d * a.x_strides.d, a.x_strides.h,
                                               a.x_strides.w, a.x_strides.c, w.space};
    const ImagePlane<T, kVector, PlainKind> plane_dy{dy + by_d.quotient * a.y_strides.n + by_d.rest * a.y_strides.d,
                                                     a.y_strides.h, a.y_strides.w, a.y_strides.c, w.out};
    for (int q = lane / kLanes * kStrip; q < w.out; q += kAcross * kStrip) {
      V reg_dy[kStrip], reg_x[kWide];
      plane_dy.load_row(reg_dy, q, by_h.rest, h.out, of_y, 0);
      const int begin = q * w.stride + s * w.dilation - w.before;
      plane_x.load_row(reg_x, begin, at_h, h.space, of_x, 0, Config::kSide > 0 ? 1 : w.stride);
      add_strip(sum, reg_dy, reg_x);
    }
  }
  finish(sum, partial + by_chunk.quotient * copies + copy, lane, there, channel, taps, member * kTaps, a.flip != 0,
         a.splits * copies);
}
