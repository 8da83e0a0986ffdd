// Depthwise convolution of planes: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r - before] * w[k, r] +
// bias[k] + residual). The input gradient of a stride of 1 is the same with the weights turned round.
//
// Layout:  the last spatial axis innermost in memory, w (K, taps). A thread owns kRows x kStrip outputs along the last
//          two axes of one channel. A block's threads are `across` strips beside, `down` below each other and those of
//          `together` neighbouring channels: a tile; it does `run` tiles of the same channels one after the other. What
//          a tile reads of a plane comes to shared memory in pieces of kVector neighbouring elements, each wholly
//          inside or outside of the image, by copies that pass no registers, kStages - 1 planes ahead. The weights
//          stand there as float, kPitch for each row of a window.
// Needs:   rows of x and y and their distances in whole pieces, pointers aligned to pieces; windows of kSide, stride
//          kStride, no dilation along the last axis, none along the second last; windows begin kShift elements behind
//          the beginning of a piece.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "dnnarray/ptx/mbarrier.cuh"
#include "conv/depthwise.cuh"

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
  static constexpr int kMostThreads = 256;
  static constexpr int kBlocks = 3;
};
struct Arguments {
  int planes;
  int channels;
  int multiplier;
  int flip;
  int across;
  int down;
  int together;
  int run;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_plane_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStride = Config::kStride, kVector = Config::kVector, kShift = Config::kShift,
              kRows = Config::kRows;
constexpr int kStrip = 8, kPitch = (kSide + 3) / 4 * 4, kStages = 3;
constexpr int kWide = (kStrip - 1) * kStride + kSide;              // inputs of a strip in a row
constexpr int kPieces = (kShift + kWide + kVector - 1) / kVector;  // that hold them
static_assert(kStrip % kVector == 0, "strips begin where pieces do");
using Sums = float[kRows][kStrip];

struct Kind {
  static constexpr bool kGradient = false, kPlain = true;
};
using SpatialAxis = DepthwiseAxis<Kind>;

extern __shared__ float4 smem_memory[];

struct Problem {
  const T* x;
  int planes, channels, multiplier;
  long long x_n, x_c, x_d, x_h;
  SpatialAxis d, h, w;
  int wide, tall;  // outputs of a tile
  int tiles_w, tiles_h;
};

// A tile and the plane of the window that is due: those in front and behind of the image are left out.
struct Cursor {
  int w, h, d, o, left;  // `left` tiles, this one included

  __device__ __forceinline__ Cursor(const Problem& a, int tile, int count) : o(0), left(count) {
    const Quotient by_w = divide(tile, a.tiles_w), by_h = divide(by_w.quotient, a.tiles_h);
    w = by_w.rest, h = by_h.rest, d = by_h.quotient;
  }
  __device__ __forceinline__ void next_tile(const Problem& a) {
    o = 0;
    --left;
    if (++w < a.tiles_w) return;
    w = 0;
    if (++h < a.tiles_h) return;
    h = 0;
    ++d;
  }
  // Whether there is a plane to be taken, at this place or behind it in the tile.
  __device__ __forceinline__ bool find_plane(const Problem& a) {
    while (o < a.d.window && a.d.input(d, o) < 0) ++o;
    return o < a.d.window;
  }
  __device__ __forceinline__ bool find(const Problem& a) {
    while (left > 0 && !find_plane(a)) next_tile(a);
    return left > 0;
  }
};

// A thread's share of what a tile reads: every so many of its pieces, lines of them by (channel, row).
struct Share {
  int rows, pieces, total;            // of a plane; of a row; of all
  int channel, row, column;           // the first one
  int by_channel, by_row, by_column;  // from one to the next

  __device__ __forceinline__ Share(const Problem& a, int together) {
    rows = (a.tall - 1) * a.h.stride + a.h.window;
    pieces = (kShift + (a.wide - 1) * kStride + kSide - 1) / kVector + 1;
    total = together * rows * pieces;
    const Quotient own = divide(threadIdx.x, pieces), line = divide(own.quotient, rows);
    const Quotient step = divide(blockDim.x, pieces), lines = divide(step.quotient, rows);
    channel = line.quotient, row = line.rest, column = own.rest;
    by_channel = lines.quotient, by_row = lines.rest, by_column = step.rest;
  }

  // Asks for all pieces of a plane of the channels from `first` on.
  __device__ __forceinline__ void bring(T* smem, const Problem& a, const Cursor& at, int first) const {
    const int top = at.h * a.tall * a.h.stride - a.h.before, begin = at.w * a.wide * kStride - a.w.before - kShift;
    const long long depth = a.d.input(at.d, at.o) * a.x_d;
    int c = channel, r = row, k = column;
#pragma unroll 1
    for (int i = threadIdx.x; i < total; i += blockDim.x) {
      const int at_h = top + r, at_w = begin + k * kVector;
      const bool inside = static_cast<unsigned>(at_h) < static_cast<unsigned>(a.h.space) &&
                          static_cast<unsigned>(at_w) < static_cast<unsigned>(a.w.space);
      const bool there = inside && first + c < a.planes;
      const Quotient image = divide(there ? first + c : 0, a.channels);
      const int taken = a.multiplier == 1 ? image.rest : divide(image.rest, a.multiplier).quotient;
      const long long from = there ? image.quotient * a.x_n + taken * a.x_c + depth + at_h * a.x_h + at_w : 0;
      cp_async<kVector * sizeof(T)>(shared_address(smem + i * kVector), a.x + from, there);
      k += by_column;
      r += by_row;
      c += by_channel;
      if (k >= pieces) k -= pieces, ++r;
      if (r >= rows) r -= rows, ++c;
    }
  }
};

__device__ __forceinline__ void load_strip(float (&x)[kWide], const T* smem) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    float piece[kVector];
    widen_all(piece, load<T, kVector>(smem + i * kVector));
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

// What a plane of inputs, of which a thread's begin at `smem`, adds to its sums.
__device__ __forceinline__ void add_plane(Sums& sum, const T* smem, int pitch, const SpatialAxis& h,
                                          const float* smem_w) {
  const int rows = (kRows - 1) * h.stride + h.window;
  for (int i = 0; i < rows; ++i, smem += pitch) {
    float x[kWide];
    load_strip(x, smem);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int r = i - m * h.stride;
      if (r < 0 || r >= h.window) continue;
      float w[kPitch];
      load_weights(w, smem_w + r * kPitch);
#pragma unroll
      for (int s = 0; s < kSide; ++s) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) sum[m][t] += x[t * kStride + s] * w[s];
      }
    }
  }
}

// The weights of `count` planes from `first` on, rows of windows kPitch apart.
__device__ __forceinline__ void stage_weights(float* smem, const T* gmem, int first, int count, int channels, int rows,
                                              bool flip) {
  const int taps = rows * kSide;
  for (int i = threadIdx.x; i < count * taps; i += blockDim.x) {
    const int plane = i / taps, tap = i - plane * taps, row = tap / kSide;
    const int channel = divide(first + plane, channels).rest;
    smem[(plane * rows + row) * kPitch + tap - row * kSide] =
        widen(gmem[static_cast<long long>(channel) * taps + (flip ? taps - 1 - tap : tap)]);
  }
}

// Where a thread stores the outputs of a tile: `rows` and `columns` of them.
__device__ __forceinline__ void store_tile(const Sums& sum,
                                           const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu>& finish,
                                           long long at, long long y_h, int rows, int columns) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (m >= rows) break;
#pragma unroll
    for (int t = 0; t < kStrip; t += kVector) {
      float values[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[j] = sum[m][t + j];
      if (t < columns) finish.put(values, at + m * y_h + t);
    }
  }
}

// Blocks count runs of tiles of the same channels, then `together` planes (n, k) at a time. Pairs hold (output, input)
// extents, (window, stride) and (dilation, before) of an axis.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const SpatialAxis d(a.axes.d), h(a.axes.h), w(a.axes.w);
  const int wide = a.across * kStrip, tall = a.down * kRows, tiles_w = (w.out - 1) / wide + 1,
            tiles_h = (h.out - 1) / tall + 1;
  const Problem problem{
      x, a.planes, a.channels, a.multiplier, a.x_strides.n, a.x_strides.c, a.x_strides.d, a.x_strides.h,
      d, h,        w,          wide,         tall,          tiles_w,       tiles_h};
  const int tiles = tiles_w * tiles_h * d.out;
  const Quotient by_run = divide(blockIdx.x, (tiles - 1) / a.run + 1);
  const Quotient strip = divide(threadIdx.x, a.across), line = divide(strip.quotient, a.down);
  const int first = by_run.quotient * a.together, begin = by_run.rest * a.run, lines = d.window * h.window;
  const Share share(problem, a.together);
  float* smem_w = reinterpret_cast<float*>(smem_memory);
  T* smem_x = reinterpret_cast<T*>(smem_w + a.together * lines * kPitch);
  const int stage =
      (share.total * kVector + 16 / static_cast<int>(sizeof(T)) - 1) & -(16 / static_cast<int>(sizeof(T)));
  Cursor coming(problem, begin, min(a.run, tiles - begin)), due = coming;
  int place_coming = 0, place_due = 0;
  const auto bring = [&] {
    if (coming.find(problem)) {
      share.bring(smem_x + place_coming * stage, problem, coming, first);
      ++coming.o;
      place_coming = place_coming == kStages - 1 ? 0 : place_coming + 1;
    }
    cp_async_commit_group();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) bring();
  stage_weights(smem_w, weight, first, min(a.together, problem.planes - first), problem.channels, lines, a.flip != 0);

  const int plane = first + line.quotient, own_p = line.rest * kRows, own_q = strip.rest * kStrip;
  const bool busy = line.quotient < a.together && plane < problem.planes;
  const Quotient image = divide(busy ? plane : first, problem.channels);
  const float begin_at = bias ? widen(bias[image.rest]) : 0.0f;
  const float* own_w = smem_w + min(line.quotient, a.together - 1) * lines * kPitch;
  const int pitch = share.pieces * kVector;
  const T* own_x =
      smem_x + (min(line.quotient, a.together - 1) * share.rows + own_p * h.stride) * pitch + own_q * kStride;
  const long long to = image.quotient * a.y_strides.n + image.rest * a.y_strides.c;
  const DepthwiseFinish<T, kVector, Config::kAdded, Config::kRelu> finish{residual, y};
  for (; due.left > 0; due.next_tile(problem)) {
    Sums sum;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) sum[m][t] = begin_at;
    }
    for (; due.find_plane(problem); ++due.o) {
      cp_async_wait_group<kStages - 2>();
      __syncthreads();  // this plane is there, and nobody needs the one before any more
      bring();
      add_plane(sum, own_x + place_due * stage, pitch, h, own_w + due.o * h.window * kPitch);
      place_due = place_due == kStages - 1 ? 0 : place_due + 1;
    }
    const int p = due.h * tall + own_p, q = due.w * wide + own_q;
    if (busy)
      store_tile(sum, finish, to + due.d * a.y_strides.d + p * a.y_strides.h + q, a.y_strides.h, h.out - p, w.out - q);
  }
}
