// Depthwise convolution: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r * dilation - before] * w[k, r] + bias[k] + residual).
// And its input gradient: dx[n, c, h] = the sum over r and over the m output channels k of c of dy[n, k, (h + before - r * dilation) / stride]
// * w[k, r], where the division leaves no rest; for a stride of 1 it runs as a forward with the weights turned round.
//
// Layout:  memory in any dense order, given by strides; w (K, taps). Channels-last: a thread owns kVector neighbouring channels of kStrip
//          outputs along the last axis; a block owns kLanes such vectors of a tile of 4 strips by its other threads' rows, whose inputs meet
//          in the first-level cache, and keeps its weights in shared memory as float. Channels-first: the same with one channel.
// Needs:   pointers and channels aligned to kVector elements; kSide, where not 0, is the window's last extent, with dilation 1.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32 (double for double).

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kGradient = false;
  static constexpr bool kStaged = true;
  static constexpr bool kPlain = true;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 3;
  static constexpr int kStride = 1;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_depthwise_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kSide = Config::kSide, kStride = Config::kStride;
constexpr int kStrip = 4, kAcross = 4, kDown = Config::kThreads / kLanes / kAcross, kChannels = kLanes * kVector;
using V = Vec<T, kVector>;

extern __shared__ double smem_memory[];

// One spatial axis: outputs, input extent, taps, and the steps between them.
struct ConvAxis {
  int out, space, window, stride, dilation, before;

  // The input that tap t of output i reads, or -1.
  __device__ __forceinline__ int input(int i, int t) const {
    int at;
    if constexpr (Config::kGradient) {
      const int distance = i + before - t * dilation;
      at = distance < 0 ? -1 : quotient(distance, stride);
      if (at * stride != distance) return -1;
    } else {
      at = i * stride + t * dilation - before;
    }
    return at >= 0 && at < space ? at : -1;
  }
};

// Where the channels of a thread's vector stand in x and w: with a multiplier, part `i` of them.
struct Channels {
  int first, multiplier;

  __device__ __forceinline__ int of_x(int j, int i) const {
    if (Config::kPlain) return first + j;
    return Config::kGradient ? (first + j) * multiplier + i : (first + j) / multiplier;
  }
  __device__ __forceinline__ int of_w(int j, int i) const {
    return Config::kPlain || !Config::kGradient ? first + j : (first + j) * multiplier + i;
  }
};

__device__ __forceinline__ V read(const T* x, const Channels& channels, int part, long long x_c) {
  if constexpr (Config::kPlain) {
    return load<T, kVector>(x + channels.first * x_c);
  } else {
    V v;
#pragma unroll
    for (int j = 0; j < kVector; ++j) v.at[j] = x[channels.of_x(j, part) * x_c];
    return v;
  }
}

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

__device__ __forceinline__ void multiply_add(A (&sum)[kVector], const V& x, const A (&w)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum[j] += widen(x.at[j]) * w[j];
}

// One row of the window over a strip of outputs from q on; `x` is the row's start.
__device__ __forceinline__ void add_row(A (&sum)[kStrip][kVector], const T* x, long long x_w, long long x_c, const ConvAxis& axis, int q,
                                        const Weights& weights, int tap, int lane, const Channels& channels, int part) {
  A w[kVector];
  if constexpr (kSide > 0) {
    constexpr int kWide = (kStrip - 1) * kStride + (kSide > 0 ? kSide : 1);
    const int first = q * kStride - axis.before;
    V reg_x[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      reg_x[i] = V{};
      if (first + i >= 0 && first + i < axis.space) reg_x[i] = read(x + (first + i) * x_w, channels, part, x_c);
    }
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) w[j] = weights.at(tap + s, lane, channels, j, part);
#pragma unroll
      for (int t = 0; t < kStrip; ++t) multiply_add(sum[t], reg_x[t * kStride + s], w);
    }
  } else {
    for (int s = 0; s < axis.window; ++s) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) w[j] = weights.at(tap + s, lane, channels, j, part);
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
        const int at = axis.input(q + t, s);
        if (at >= 0) multiply_add(sum[t], read(x + at * x_w, channels, part, x_c), w);
      }
    }
  }
}

// `outer` counts batch items, times channels where those do not stand in vectors; `vectors` of channels are then 1. flags: 1 flip, 2 bias,
// 4 residual. Pairs hold (output, input) extents, (window, stride) and (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long outer, long long planes, long long vectors, long long multiplier, long long flags, long long x_n,
    long long x_c, long long x_d, long long x_h, long long x_w, long long y_n, long long y_c, long long y_d, long long y_h, long long y_w,
    long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2) {
  const ConvAxis d{high(d0), low(d0), high(d1), low(d1), high(d2), low(d2)}, h{high(h0), low(h0), high(h1), low(h1), high(h2), low(h2)},
      w{high(w0), low(w0), high(w1), low(w1), high(w2), low(w2)};
  const int taps = d.window * h.window * w.window, lane = threadIdx.x % kLanes, spot = threadIdx.x / kLanes;
  const int first_channel = blockIdx.y * kChannels;
  A* smem_w = reinterpret_cast<A*>(smem_memory);
  const Weights weights{gmem_w, smem_w, taps, (flags & 1) != 0};
  if constexpr (Config::kStaged) {
    for (int i = threadIdx.x; i < taps * kChannels; i += Config::kThreads) {
      const int channel = i / taps, tap = i - channel * taps;
      const bool there = first_channel + channel < vectors * kVector;
      const A value = there ? widen(gmem_w[static_cast<long long>(first_channel) * taps + i]) : A(0);
      smem_w[(weights.flip ? taps - 1 - tap : tap) * kChannels + channel] = value;
    }
    __syncthreads();
  }
  if (blockIdx.y * kLanes + lane >= vectors) return;

  const int groups = (w.out + kStrip * kAcross - 1) / (kStrip * kAcross);
  const long long rows = outer * d.out * h.out, tiles = (rows + kDown - 1) / kDown * groups;
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Split by_group = split(tile, groups);
    const long long row = by_group.quotient * kDown + spot / kAcross;
    const int q = (by_group.rest * kAcross + spot % kAcross) * kStrip;
    if (row >= rows || q >= w.out) continue;
    const Split by_h = split(row, h.out), by_d = split(by_h.quotient, d.out), by_c = split(by_d.quotient, static_cast<int>(planes));
    const Channels channels{first_channel + lane * kVector + by_c.rest, static_cast<int>(multiplier)};

    A sum[kStrip][kVector] = {};
    const int parts = Config::kGradient ? static_cast<int>(multiplier) : 1;
    for (int part = 0; part < parts; ++part)
      for (int o = 0; o < d.window; ++o) {
        const int at_d = d.input(by_d.rest, o);
        for (int r = 0; at_d >= 0 && r < h.window; ++r) {
          const int at_h = h.input(by_h.rest, r);
          if (at_h < 0) continue;
          const T* x = gmem_x + by_c.quotient * x_n + at_d * x_d + at_h * x_h;
          add_row(sum, x, x_w, x_c, w, q, weights, (o * h.window + r) * w.window, lane, channels, part);
        }
      }

    const long long y = by_c.quotient * y_n + channels.first * y_c + by_d.rest * y_d + by_h.rest * y_h + q * y_w;
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      if (q + t >= w.out) break;
      V reg_y, reg_residual;
      if (flags & 4) reg_residual = load<T, kVector>(gmem_residual + y + t * y_w);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        A value = sum[t][j];
        if (flags & 2) value += widen(gmem_bias[channels.first + j]);
        if (flags & 4) value += widen(reg_residual.at[j]);
        if (Config::kRelu && value < A(0)) value = A(0);
        reg_y.at[j] = narrow<T>(value);
      }
      store(gmem_y + y + t * y_w, reg_y);
    }
  }
}
