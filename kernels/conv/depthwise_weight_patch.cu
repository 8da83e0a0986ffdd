// The weight gradient of a depthwise convolution over lines and planes: dw[k, r, s] = the sum over n, p, q of dy[n, k,
// p, q] * x[n, k / m, p + r - before, q + s - before]. First stage: `parts` partial sums of each tap, (K, taps, parts),
// in float; they are added up by another launch, so that the same values give the same bits.
//
// Layout:  the last spatial axis innermost in memory. A block stays with one channel; a thread takes patches of kRows x
//          kVector outputs, kRun of them at a time, and asks for all pieces of 16 bytes of dy and x that they meet
//          before it multiplies. Threads run along a row of patches, then down the plane, then through the images: what
//          neighbours share comes from the first-level cache.
// Needs:   rows of x and dy and their distances in whole pieces, pointers aligned to 16 bytes; a window of kHigh x
//          kSide, strides and dilations of 1; windows begin kShift elements behind the beginning of a piece.
// Bound:   memory: x and dy once; float32 arithmetic for large windows. Sums in float32, of a patch first and then of
//          all.

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kHigh = 1;
  static constexpr int kSide = 5;
  static constexpr int kShift = 6;
  static constexpr int kRows = 1;
  static constexpr int kRun = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  int batch;
  int channels;
  int multiplier;
  int flip;
  int parts;
  int share;
  int across;
  int down;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_patch_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kHigh = Config::kHigh, kSide = Config::kSide, kShift = Config::kShift, kRows = Config::kRows,
              kRun = Config::kRun;
constexpr int kThreads = Config::kThreads, kTaps = kHigh * kSide;
constexpr int kVector = 16 / sizeof(T), kReach = kRows + kHigh - 1;              // rows of x that a patch meets
constexpr int kPieces = (kShift + kVector - 1 + kSide + kVector - 1) / kVector;  // and pieces of each

// An image's planes of x and dy: extents, distances, and how a patch's first input stands to its first output.
struct Planes {
  int height, width, out_height, out_width, before_h, before_w;
  long long x_n, x_h, y_n, y_h;
};

struct Patch {
  uint4 dy[kRows], x[kReach][kPieces];

  // Nothing but zeros where `there` is false.
  __device__ __forceinline__ void bring(const T* gmem_dy, const T* gmem_x, const Planes& a, int p, int q, bool there) {
    const int top = p - a.before_h, left = q - a.before_w - kShift;
#pragma unroll
    for (int m = 0; m < kRows; ++m)
      dy[m] = ld_global_nc_v4_if(gmem_dy + (p + m) * a.y_h + q, there && p + m < a.out_height);
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
      const bool row = there && static_cast<unsigned>(top + i) < static_cast<unsigned>(a.height);
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        const int at = left + k * kVector;
        x[i][k] = ld_global_nc_v4_if(gmem_x + (top + i) * a.x_h + at,
                                     row && static_cast<unsigned>(at) < static_cast<unsigned>(a.width));
      }
    }
  }

  // sum[r][s] += the products of dy with the inputs that tap (r, s) reads.
  __device__ __forceinline__ void add(float (&sum)[kHigh][kSide]) const {
    float of_patch[kHigh][kSide] = {}, g[kRows][kVector];
#pragma unroll
    for (int m = 0; m < kRows; ++m) widen_piece(g[m], dy[m]);
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
      float value[kPieces * kVector];
#pragma unroll
      for (int k = 0; k < kPieces; ++k)
        widen_piece(*reinterpret_cast<float (*)[kVector]>(value + k * kVector), x[i][k]);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const int r = i - m;
        if (r < 0 || r >= kHigh) continue;
#pragma unroll
        for (int s = 0; s < kSide; ++s) {
#pragma unroll
          for (int t = 0; t < kVector; ++t) of_patch[r][s] += g[m][t] * value[kShift + t + s];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kHigh; ++r) {
#pragma unroll
      for (int s = 0; s < kSide; ++s) sum[r][s] += of_patch[r][s];
    }
  }

 private:
  static __device__ __forceinline__ void widen_piece(float (&v)[kVector], const uint4& piece) {
    widen_all(v, Wordwise<T, kVector>{piece.x, piece.y, piece.z, piece.w});
  }
};

// What the threads of a block have of each tap.
__device__ __forceinline__ void finish(const float (&sum)[kHigh][kSide], float* partial, bool flip, long long parts) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float smem_sums[kTaps][kWarps];
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const float of_warp = warp_sum(sum[tap / kSide][tap % kSide]);
    if (threadIdx.x % kWarp == 0) smem_sums[tap][threadIdx.x / kWarp] = of_warp;
  }
  __syncthreads();
  for (int tap = threadIdx.x; tap < kTaps; tap += kThreads) {
    float all = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) all += smem_sums[tap][warp];
    partial[(flip ? kTaps - 1 - tap : tap) * parts] = all;
  }
}

// Block b takes channel b % channels and the patches of part b / channels, `share` of them: beside each other, then
// below each other, then of the next image.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  const Planes problem{a.axes.h.space,  a.axes.w.space, a.axes.h.out,  a.axes.w.out,  a.axes.h.before,
                       a.axes.w.before, a.x_strides.n,  a.x_strides.h, a.y_strides.n, a.y_strides.h};
  const Quotient by_channel = divide(blockIdx.x, a.channels);
  const int channel = by_channel.rest, of_x = divide(channel, a.multiplier).quotient;
  const T *own_dy = dy + channel * a.y_strides.c, *own_x = x + of_x * a.x_strides.c;
  const int first = by_channel.quotient * a.share, end = min(first + a.share, a.batch * a.down * a.across);
  float sum[kHigh][kSide] = {};
  for (int begin = first + threadIdx.x; begin < end; begin += kRun * kThreads) {
    Patch patch[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const int at = begin + k * kThreads;
      const Quotient by_column = divide(at, a.across), by_row = divide(by_column.quotient, a.down);
      const int p = by_row.rest * kRows, q = by_column.rest * kVector;
      patch[k].bring(own_dy + by_row.quotient * problem.y_n, own_x + by_row.quotient * problem.x_n, problem, p, q,
                     at < end);
    }
#pragma unroll
    for (int k = 0; k < kRun; ++k) patch[k].add(sum);
  }
  finish(sum, partial + static_cast<long long>(channel) * kTaps * a.parts + by_channel.quotient, a.flip != 0, a.parts);
}
