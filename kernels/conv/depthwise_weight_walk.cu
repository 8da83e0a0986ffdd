// The weight gradient of a depthwise convolution by threads that walk down their columns: dw[c, r, s] = the sum over n,
// p, q of dy[n, c, p, q] * x[n, c / m, p + r - before, q + s - before]. First stage: `parts` partial sums of each tap,
// (K, taps, parts), in float; they are added up by another launch, so that the same values give the same bits.
//
// Layout:  channels innermost in memory. A thread owns a word of channels of dy (one of float, two of half types) and
//          strips of kStrip columns of dy, each over `height` rows; it brings every row of x once, with the row of dy
//          that begins there, keeps the last kSide rows of dy in registers and has the next ones on their way while it
//          multiplies. Rows of dy change places by the loop's unrolling, not by moves. `lanes` neighbouring threads
//          have neighbouring channels; what the threads of a block have of the same channels is added up in shared
//          memory.
// Needs:   pointers and channels of dy aligned to 4 bytes; one plane of the window, kSide x kSide, no stride, no
//          dilation; lanes divides kThreads. Where kShared, all channels of a word of dy have one channel of x: an even
//          m for half types. Else m is 1.
// Bound:   memory: x and dy once; float32 arithmetic for large windows. Sums in float32.

#include "dnnarray/core/vec.cuh"
#include "conv/depthwise.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kShared = false;
  static constexpr int kSide = 3;
  static constexpr int kStrip = 7;
  static constexpr int kAhead = 1;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 3;
};
struct Arguments {
  int batch;
  int channels;
  int multiplier;
  int flip;
  int splits;
  int lanes;
  int high;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_walk_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStrip = Config::kStrip, kThreads = Config::kThreads;
constexpr int kVector = 4 / sizeof(T), kMaps = Config::kShared ? 1 : kVector;  // channels of dy, of x
constexpr int kWide = kStrip + kSide - 1, kTaps = kSide * kSide;
constexpr int kAhead = Config::kAhead;  // rows that are on their way
constexpr int kRows = kAhead + 1,
              kKept = (kSide + 2 * kAhead) / kRows * kRows;  // of x and of dy in registers; kRows divides both

// Which of N columns from `first` on an image has, as bits.
template <int N>
__device__ __forceinline__ unsigned inside(int first, int width) {
  unsigned found = 0;
#pragma unroll
  for (int j = 0; j < N; ++j)
    found |= static_cast<unsigned>(static_cast<unsigned>(first + j) < static_cast<unsigned>(width)) << j;
  return found;
}

// N words or halves of them, `step` elements apart; zeros where `mask` has none.
template <int N, typename Word>
__device__ __forceinline__ void load_row(Word (&v)[N], const T* at, long long step, unsigned mask) {
#pragma unroll
  for (int j = 0; j < N; ++j, at += step) {
    if constexpr (sizeof(Word) == 4) {
      ld_global_nc_b32_if(v[j], at, mask & 1u << j);
    } else {
      ld_global_nc_b16_if(v[j], at, mask & 1u << j);
    }
  }
}

template <int N, typename Word>
__device__ __forceinline__ void widen_word(float (&v)[N], Word word) {
  static_assert(sizeof word == N * sizeof(T), "the channels of a word");
  Vec<T, N> found;
  memcpy(&found, &word, sizeof word);
  widen_all(v, found);
}

template <int kBytes>
struct Word {
  using Type = unsigned;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};
using OfX = typename Word<kMaps * sizeof(T)>::Type;

struct Walk {
  const T *x, *dy;  // the first words of the next rows
  long long x_h, x_w, y_h, y_w;
  unsigned mask_x, mask_dy;
  int row, height;  // the next row of x
  int left;         // rows of dy

  __device__ __forceinline__ void bring(OfX (&of_x)[kWide], unsigned (&of_dy)[kStrip]) {
    load_row(of_x, x, x_w, left > 1 - kSide && static_cast<unsigned>(row) < static_cast<unsigned>(height) ? mask_x : 0);
    load_row(of_dy, dy, y_w, left > 0 ? mask_dy : 0);
    x += x_h, dy += y_h, ++row, --left;
  }
};

// sum[r][s] += a row of x times the rows of dy that read it by taps r; `now` is the place of the one that begins there.
__device__ __forceinline__ void add_row(float (&sum)[kTaps][kVector], const OfX (&x)[kWide],
                                        const unsigned (&dy)[kKept][kStrip], int now) {
  float value[kWide][kMaps];
#pragma unroll
  for (int i = 0; i < kWide; ++i) widen_word(value[i], x[i]);
#pragma unroll
  for (int r = 0; r < kSide; ++r)
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      float g[kVector];
      widen_word(g, dy[(now + kKept - r) % kKept][t]);
#pragma unroll
      for (int s = 0; s < kSide; ++s)
#pragma unroll
        for (int j = 0; j < kVector; ++j) sum[r * kSide + s][j] += g[j] * value[t + s][j % kMaps];
    }
}

__device__ __forceinline__ void walk(float (&sum)[kTaps][kVector], Walk& at, int rows) {
  OfX x[kRows][kWide];
  unsigned dy[kKept][kStrip] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) at.bring(x[i], dy[i]);
#pragma unroll 1
  for (int left = rows + kSide - 1; left > 0; left -= kKept) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      at.bring(x[(i + kAhead) % kRows], dy[(i + kAhead) % kKept]);
      add_row(sum, x[i % kRows], dy, i);
    }
  }
}

// What a thread has in shared memory: the sums of its walks, added to the earlier ones where kAdded. Rounding grows
// with the terms added one after the other.
template <bool kAdded>
__device__ __forceinline__ void keep(float* own, const float (&sum)[kTaps][kVector]) {
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap)
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      own[tap * kThreads * kVector + j] = kAdded ? own[tap * kThreads * kVector + j] + sum[tap][j] : sum[tap][j];
}

// Block b takes words of channels b % chunks and of the strips (columns fastest, then parts of `high` rows, then
// images) each `splits` * kThreads / lanes-th.
extern "C" __global__ void __launch_bounds__(kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  __shared__ float smem_sums[kTaps * kThreads * kVector];
  const int across = a.lanes, slots = kThreads / across, lane = threadIdx.x % across, slot = threadIdx.x / across;
  const int chunks = (a.channels / kVector + across - 1) / across;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first = by_chunk.rest * across * kVector, channel = first + lane * kVector;
  const int strips = (a.axes.w.out - 1) / kStrip + 1, segments = static_cast<int>((a.axes.h.out - 1) / a.high) + 1;
  const int total = a.batch * segments * strips;
  const int from = Config::kShared ? divide(channel, a.multiplier).quotient : channel;
  float* own = smem_sums + threadIdx.x * kVector;
  keep<false>(own, {});
  for (int i = by_chunk.quotient * slots + slot; i < total && channel < a.channels; i += a.splits * slots) {
    const Quotient by_w = divide(i, strips), by_h = divide(by_w.quotient, segments);
    const int p = by_h.rest * a.high, q = by_w.rest * kStrip, end = min(p + a.high, a.axes.h.out);
    const int row = p - a.axes.h.before, column = q - a.axes.w.before;
    Walk at = {x + by_h.quotient * a.x_strides.n + row * a.x_strides.h + column * a.x_strides.w + from,
               dy + by_h.quotient * a.y_strides.n + p * a.y_strides.h + q * a.y_strides.w + channel,
               a.x_strides.h,
               a.x_strides.w,
               a.y_strides.h,
               a.y_strides.w,
               inside<kWide>(column, a.axes.w.space),
               inside<kStrip>(q, a.axes.w.out),
               row,
               a.axes.h.space,
               end - p};
    float sum[kTaps][kVector] = {};
    walk(sum, at, end - p);
    keep<true>(own, sum);
  }
  __syncthreads();
  const int wide = across * kVector;
  for (int i = threadIdx.x; i < kTaps * wide; i += kThreads) {
    const int tap = i / wide, c = i - tap * wide, at = a.flip ? kTaps - 1 - tap : tap;
    if (first + c >= a.channels) continue;
    float all = 0;
#pragma unroll 4
    for (int other = 0; other < slots; ++other) all += smem_sums[(tap * slots + other) * wide + c];
    partial[(static_cast<long long>(first + c) * kTaps + at) * a.splits + by_chunk.quotient] = all;
  }
}
