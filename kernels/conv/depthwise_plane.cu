// Depthwise convolution of planes: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r - before] * w[k, r] + bias[k] + residual). The input
// gradient of a stride of 1 is the same with the weights turned round.
//
// Layout:  the last spatial axis innermost in memory, w (K, taps). A thread owns kRows x kStrip outputs along the last two axes of one channel, kParts
//          times `across` strips apart, and walks down the rows that they read: pieces of kVector neighbouring elements, each wholly inside or
//          outside of the image, the next row on its way while the last is used. A block's threads are `across` strips beside, `down` below each
//          other and those of neighbouring channels; its weights stand in shared memory as float, kPitch for each row of a window.
// Needs:   rows of x and y and their distances in whole pieces, pointers aligned to pieces; windows of kSide, stride kStride, no dilation along
//          the last axis, none along the second last; windows begin kShift elements behind the beginning of a piece.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "dnnarray/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 5;
  static constexpr int kStride = 1;
  static constexpr int kVector = 8;
  static constexpr int kShift = 6;
  static constexpr int kRows = 1;
  static constexpr int kParts = 2;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 5;
};
#define DNNARRAY_ENTRY conv_depthwise_plane_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStride = Config::kStride, kVector = Config::kVector, kShift = Config::kShift;
constexpr int kRows = Config::kRows, kParts = Config::kParts, kStrip = 8, kPitch = (kSide + 3) / 4 * 4;
constexpr int kWide = (kStrip - 1) * kStride + kSide;               // inputs of a strip in a row
constexpr int kPieces = (kShift + kWide + kVector - 1) / kVector;  // that hold them
static_assert(kStrip % kVector == 0, "strips begin where pieces do");
using Piece = Vec<T, kVector>;
using Pieces = Piece[kParts][kPieces];
using Sums = float[kParts][kRows][kStrip];

struct Kind {
  static constexpr bool kGradient = false, kPlain = true;
};
using SpatialAxis = ConvAxis<Kind>;

extern __shared__ float4 smem_memory[];

// A plane of an image, and where the first piece of each part stands in a row.
struct Source {
  const T* x;
  long long row;
  int width, first, apart;

  __device__ __forceinline__ void load_row(Pieces& v, int at, int rows) const {
    const T* p = x + at * row;
    const bool there = static_cast<unsigned>(at) < static_cast<unsigned>(rows);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int column = first + part * apart + i * kVector;
        v[part][i] = Piece{};
        if (there && static_cast<unsigned>(column) < static_cast<unsigned>(width)) v[part][i] = load<T, kVector>(p + column);
      }
    }
  }
};

__device__ __forceinline__ void widen_strip(float (&x)[kWide], const Piece (&v)[kPieces]) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    float piece[kVector];
    widen_all(piece, v[i]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const int k = i * kVector + j - kShift;
      if (k >= 0 && k < kWide) x[k] = piece[j];
    }
  }
}

__device__ __forceinline__ void load_weights(float (&w)[kPitch], const float* smem) {
#pragma unroll
  for (int s = 0; s < kPitch; s += 4) {
    const float4 v = *reinterpret_cast<const float4*>(smem + s);
    w[s] = v.x, w[s + 1] = v.y, w[s + 2] = v.z, w[s + 3] = v.w;
  }
}

// What a row of inputs, the `i`-th that the first row of outputs reads, adds to the sums.
__device__ __forceinline__ void add_row(Sums& sum, const Pieces& v, int i, const SpatialAxis& h, const float* smem_w) {
  float x[kParts][kWide];
#pragma unroll
  for (int part = 0; part < kParts; ++part) widen_strip(x[part], v[part]);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    const int r = i - m * h.stride;
    if (r < 0 || r >= h.window) continue;
    float w[kPitch];
    load_weights(w, smem_w + r * kPitch);
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) sum[part][m][t] += x[part][t * kStride + s] * w[s];
      }
    }
  }
}

// The weights of `count` planes from `first` on, rows of windows kPitch apart.
__device__ __forceinline__ void stage_weights(float* smem, const T* gmem, int first, int count, int channels, int rows, bool flip) {
  const int taps = rows * kSide;
  for (int i = threadIdx.x; i < count * taps; i += Config::kThreads) {
    const int plane = i / taps, tap = i - plane * taps, row = tap / kSide;
    const int channel = static_cast<int>(static_cast<unsigned>(first + plane) % static_cast<unsigned>(channels));
    smem[plane * rows * kPitch + row * kPitch + tap - row * kSide] =
        widen(gmem[static_cast<long long>(channel) * taps + (flip ? taps - 1 - tap : tap)]);
  }
}

// Blocks count tiles beside each other, tiles below each other, depths, then `together` planes (n, k) at a time. Pairs hold (output, input) extents,
// (window, stride) and (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long planes, long long channels, long long multiplier, long long flip, long long across, long long down,
    long long together, long long x_n, long long x_c, long long x_d, long long x_h, long long y_n, long long y_c, long long y_d, long long y_h,
    long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2) {
  const SpatialAxis d{high(d0), low(d0), high(d1), low(d1), high(d2), low(d2)}, h{high(h0), low(h0), high(h1), low(h1), high(h2), low(h2)},
      w{high(w0), low(w0), high(w1), low(w1), high(w2), low(w2)};
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Quotient strip = divide(threadIdx.x, i(across)), by_plane = divide(strip.quotient, i(down));
  const int wide = kParts * i(across) * kStrip, high_tile = i(down) * kRows;
  const Quotient by_w = divide(blockIdx.x, (w.out + wide - 1) / wide), by_h = divide(by_w.quotient, (h.out + high_tile - 1) / high_tile);
  const Quotient by_d = divide(by_h.quotient, d.out);
  const int first = by_d.quotient * i(together), plane = first + by_plane.quotient;
  const int p = by_h.rest * high_tile + by_plane.rest * kRows, q = by_w.rest * wide + strip.rest * kStrip;
  const bool busy = by_plane.quotient < together && plane < planes && p < h.out && q < w.out;
  const Quotient image = divide(busy ? plane : first, i(channels));
  const int taken = multiplier == 1 ? image.rest : image.rest / i(multiplier);
  const int rows = (kRows - 1) * h.stride + h.window, top = p * h.stride - h.before, apart = i(across) * kStrip;
  Source source{gmem_x + image.quotient * x_n + taken * x_c, x_h, w.space, q * kStride - w.before - kShift, apart * kStride};
  int o = 0, at_d = d.input(by_d.rest, 0);
  while (at_d < 0 && ++o < d.window) at_d = d.input(by_d.rest, o);
  const T* plane_x = source.x;
  source.x = plane_x + max(at_d, 0) * x_d;
  Pieces next;
  source.load_row(next, top, busy && at_d >= 0 ? h.space : 0);  // on its way while the weights come

  float* smem_w = reinterpret_cast<float*>(smem_memory);
  const int lines = d.window * h.window;
  stage_weights(smem_w, gmem_w, first, min(i(together), i(planes) - first), i(channels), lines, flip != 0);
  __syncthreads();
  if (!busy) return;
  const float* own_w = smem_w + by_plane.quotient * lines * kPitch, bias = gmem_bias ? widen(gmem_bias[image.rest]) : 0.0f;
  Sums sum;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) sum[part][m][t] = bias;
    }
  }
  while (o < d.window) {
    const float* line_w = own_w + o * h.window * kPitch;
    at_d = -1;
    while (++o < d.window && (at_d = d.input(by_d.rest, o)) < 0) {
    }
    for (int line = 0; line < rows; ++line) {
      Pieces v;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) v[part][k] = next[part][k];
      }
      if (line + 1 < rows) {
        source.load_row(next, top + line + 1, h.space);
      } else if (o < d.window) {
        source.x = plane_x + at_d * x_d;
        source.load_row(next, top, h.space);
      }
      add_row(sum, v, line, h, line_w);
    }
  }

  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{gmem_residual, gmem_y};
  const long long y = image.quotient * y_n + image.rest * y_c + by_d.rest * y_d + p * y_h + q;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (p + m >= h.out) break;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int t = 0; t < kStrip; t += kVector) {
        float values[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] = sum[part][m][t + j];
        if (q + part * apart + t < w.out) finish.put(values, y + m * y_h + part * apart + t);
      }
    }
  }
}
