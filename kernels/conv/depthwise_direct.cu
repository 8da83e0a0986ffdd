// Depthwise convolution: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r * dilation - before] * w[k, r] +
// bias[k] + residual). And its input gradient: dx[n, c, h] = the sum over r and over the m output channels k of c of
// dy[n, k, (h + before - r * dilation) / stride]
// * w[k, r], where the division leaves no rest; for a stride of 1 it runs as a forward with the weights turned round.
//
// Layout:  memory in any dense order, given by strides; w (K, taps). Channels-last: a thread owns kVector neighbouring
//          channels of a tile of kRows x kStrip outputs along the last two axes and walks down the input rows that the
//          tile reads, each loaded once, the next one while the last is used. A block owns kLanes such vectors of
//          kAcross tiles beside and the others below each other, whose inputs meet in the first-level cache, and keeps
//          its weights in shared memory as float. Channels-first: the same with one channel.
// Needs:   pointers and channels aligned to kVector elements; kSide, where not 0, is the window's last extent, with
//          dilation 1; kRows is 1 for dilated windows and in the gather of the gradient.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32 (double for
//          double).

#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kGradient = false;
  static constexpr bool kStaged = true;
  static constexpr bool kPlain = true;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 3;
  static constexpr int kStride = 1;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kAcross = 4;
  static constexpr int kRows = 4;
  static constexpr int kStrip = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  int outer;
  int planes;
  int vectors;
  int multiplier;
  int flip;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_direct_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kSide = Config::kSide, kStride = Config::kStride;
constexpr int kStrip = Config::kStrip, kRows = Config::kRows, kAcross = Config::kAcross;
constexpr int kDown = Config::kThreads / kLanes / kAcross, kChannels = kLanes * kVector;
constexpr int kWide = (kStrip - 1) * kStride + (kSide > 0 ? kSide : 1);  // inputs of a strip in a row
using V = Vec<T, kVector>;

extern __shared__ double smem_memory[];

struct Kind {
  static constexpr bool kGradient = Config::kGradient, kPlain = Config::kPlain;
};
using Channels = DepthwiseChannels<Kind>;
using SpatialAxis = DepthwiseAxis<Kind>;

struct Weights {
  const T* gmem;
  const A* smem;
  int taps;
  bool flip;

  __device__ __forceinline__ A at(int tap, int lane, const Channels& channels, int j, int part) const {
    if constexpr (Config::kStaged) return smem[tap * kChannels + lane * kVector + j];
    return widen(gmem[static_cast<long long>(channels.of_w(j, part)) * taps + (flip ? taps - 1 - tap : tap)]);
  }
};

template <int kTaps>
__device__ __forceinline__ void load_weights(A (&w)[kTaps][kVector], const Weights& weights, int tap, int lane,
                                             const Channels& channels, int part) {
#pragma unroll
  for (int s = 0; s < kTaps; ++s) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) w[s][j] = weights.at(tap + s, lane, channels, j, part);
  }
}

__device__ __forceinline__ void multiply_add(A (&sum)[kVector], const A (&x)[kVector], const A (&w)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] += x[j] * w[j];
}

using Source = ImagePlane<T, kVector, Kind>;

// What one plane of the window adds to a tile of outputs that begins at (p, q): windows of kSide taps along the last
// axis.
__device__ __forceinline__ void add_plane(A (&sum)[kRows][kStrip][kVector], const Source& source, const SpatialAxis& h,
                                          int p, int first, const Weights& weights, int tap, int lane,
                                          const Channels& channels, int part) {
  constexpr int kTaps = kSide > 0 ? kSide : 1;
  const int rows = (kRows - 1) * h.stride + h.window, top = p * h.stride - h.before;
  V next[kWide];
  source.load_row(next, first, top, h.space, channels, part);
  for (int i = 0; i < rows; ++i) {
    A x[kWide][kVector], w[kTaps][kVector];
#pragma unroll
    for (int k = 0; k < kWide; ++k) widen_all(x[k], next[k]);
    if (i + 1 < rows) source.load_row(next, first, top + (i + 1) * h.dilation, h.space, channels, part);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int r = i - m * h.stride;
      if (r < 0 || r >= h.window) continue;
      load_weights<kTaps>(w, weights, tap + r * kTaps, lane, channels, part);
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) multiply_add(sum[m][t], x[t * kStride + s], w[s]);
      }
    }
  }
}

// The same for any window, and for the gather of the gradient: one row of outputs.
__device__ __forceinline__ void add_plane_of_any(A (&sum)[kRows][kStrip][kVector], const Source& source,
                                                 const SpatialAxis& h, int p, const SpatialAxis& w, int q,
                                                 const Weights& weights, int tap, int lane, const Channels& channels,
                                                 int part) {
  for (int r = 0; r < h.window; ++r) {
    const int at_h = h.input(p, r);
    for (int s = 0; at_h >= 0 && s < w.window; ++s) {
      A one[1][kVector], x[kVector];
      load_weights<1>(one, weights, tap + r * w.window + s, lane, channels, part);
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
        const int at = w.input(q + t, s);
        if (at < 0) continue;
        widen_all(x, source.read(source.x + at_h * source.row + at * source.column, channels, part));
        multiply_add(sum[0][t], x, one[0]);
      }
    }
  }
}

// `outer` counts batch items, times channels where those do not stand in vectors; `vectors` of channels are then 1.
// Pairs hold (output, input) extents, (window, stride) and (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const SpatialAxis d(a.axes.d), h(a.axes.h), w(a.axes.w);
  const int taps = d.window * h.window * w.window, lane = threadIdx.x % kLanes, spot = threadIdx.x / kLanes;
  const int chunks = (a.vectors + kLanes - 1) / kLanes;
  const Quotient chunk = divide(blockIdx.x, chunks);  // neighbouring channels at the same time
  const int first_channel = chunk.rest * kChannels;
  A* smem_w = reinterpret_cast<A*>(smem_memory);
  const Weights weights{weight, smem_w, taps, a.flip != 0};
  if constexpr (Config::kStaged) {
    stage_weights<kChannels>(smem_w, weight, first_channel, a.vectors * kVector, taps, weights.flip);
    __syncthreads();
  }
  if (chunk.rest * kLanes + lane >= a.vectors) return;

  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{residual, y};
  const int groups = (w.out + kStrip * kAcross - 1) / (kStrip * kAcross), down = (h.out + kRows - 1) / kRows;
  const int rows = a.outer * d.out * down, tiles = (rows + kDown - 1) / kDown * groups, step = gridDim.x / chunks;
  for (int tile = chunk.quotient; tile < tiles; tile += step) {
    const Quotient by_group = divide(tile, groups);
    const int row = by_group.quotient * kDown + spot / kAcross;
    const int q = (by_group.rest * kAcross + spot % kAcross) * kStrip;
    if (row >= rows || q >= w.out) continue;
    const Quotient by_h = divide(row, down), by_d = divide(by_h.quotient, d.out),
                   by_c = divide(by_d.quotient, a.planes);
    const Channels channels{first_channel + lane * kVector + by_c.rest, a.multiplier};
    const int p = by_h.rest * kRows;

    A sum[kRows][kStrip][kVector];
    begin_sums(sum, bias, channels.first);
    const int parts = Config::kGradient ? a.multiplier : 1;
    for (int part = 0; part < parts; ++part)
      for (int o = 0; o < d.window; ++o) {
        const int at_d = d.input(by_d.rest, o), tap = o * h.window * w.window;
        if (at_d < 0) continue;
        const Source source{x + by_c.quotient * a.x_strides.n + at_d * a.x_strides.d, a.x_strides.h, a.x_strides.w,
                            a.x_strides.c, w.space};
        if constexpr (kSide > 0) {
          add_plane(sum, source, h, p, q * kStride - w.before, weights, tap, lane, channels, part);
        } else if (Config::kGradient && w.stride == 2) {  // the usual one, in whose loops nothing is divided
          add_plane_of_any(sum, source, h, p, w.with_stride(2), q, weights, tap, lane, channels, part);
        } else {
          add_plane_of_any(sum, source, h, p, w, q, weights, tap, lane, channels, part);
        }
      }

    const long long to = by_c.quotient * a.y_strides.n + channels.first * a.y_strides.c + by_d.rest * a.y_strides.d +
                         p * a.y_strides.h + q * a.y_strides.w;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (p + m >= h.out) break;
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
        if (q + t < w.out) finish.put(sum[m][t], to + m * a.y_strides.h + t * a.y_strides.w);
      }
    }
  }
}
