// Depthwise convolution by strips: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r - before] * w[k, r] + bias[k] + residual). The input
// gradient of a stride of 1 is the same with the weights turned round, summed over the m channels of x that belong to one of y.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down a range of columns of one image or of several small ones, or, where the
//          window is kDepth > 1 deep, of the planes of an image that kPlanes planes of outputs read, kLines rows a step, which come to
//          shared memory some steps ahead. A thread owns kStrip neighbouring outputs of kOut channels, which it computes from kIn channels,
//          kLanes such vectors beside each other; its weights stay in registers. A row of inputs is used once, for all outputs that it meets: their sums are alive in
//          registers and move on from row to row.
// Needs:   pointers aligned to 16 bytes, channels in whole vectors; a square window of kSide, kStride along both axes, no dilation; less
//          than 2^31 blocks; images of less than 2^31 elements.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "dnnarray/depthwise_stream.cuh"
#include "dnnarray/division.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kDepth = 1;
  static constexpr int kPlanes = 1;
  static constexpr int kSide = 7;
  static constexpr int kStride = 1;
  static constexpr int kLines = 2;
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  static constexpr int kLanes = 32;
  static constexpr int kStrip = 7;
  static constexpr int kShare = 5;
  static constexpr int kStages = 4;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 3;
};
#define DNNARRAY_ENTRY conv_depthwise_strip_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStride = Config::kStride, kLanes = Config::kLanes, kStrip = Config::kStrip, kStages = Config::kStages;
constexpr int kIn = Config::kReads, kOut = Config::kWrites, kMaps = kIn > kOut ? kIn : kOut;  // channels that a thread reads, writes, has weights of
constexpr int kChannels = kLanes * kIn, kPixel = kChannels * sizeof(T);
constexpr int kDepth = Config::kDepth, kPlanes = Config::kPlanes, kTaps = kDepth * kSide * kSide;
constexpr int kLines = Config::kLines, kWide = (kStrip - 1) * kStride + kSide;  // rows of inputs in a step; inputs of a strip in a row
constexpr int kAlive = (kSide - 1) / kStride + 1;                               // outputs that a row meets
constexpr int kRows = kLines / kStride;                                         // of outputs, in a step

extern __shared__ uint4 smem_memory[];

__device__ __forceinline__ Quotient split(int a, const Divisor& by) {
  const int q = static_cast<int>(by.quotient(a));
  return {q, a - q * static_cast<int>(by.n)};
}

using PlaneSums = float[kAlive][kStrip][kOut];
using Sums = PlaneSums[kPlanes];
using Weights = float[kDepth][kSide][kSide][kMaps];

// What row kPhase of each kStride rows adds to the outputs of a plane that it meets. In the first one of the first plane of a window they move
// on and new ones begin with the bias: the oldest first, so that each takes the place of the one before.
template <int kPhase>
__device__ __forceinline__ void add_row(PlaneSums& sum, const float (&x)[kWide][kIn], const float (&w)[kSide][kSide][kMaps],
                                        const float (&bias)[kOut], bool first) {
#pragma unroll
  for (int j = kAlive - 1; j >= 0; --j) {
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
#pragma unroll
      for (int v = 0; v < kMaps; ++v) {
        const int in = v * kIn / kMaps, out = v * kOut / kMaps;
        if (kPhase == 0 && first && v * kOut % kMaps == 0) sum[j][t][out] = j > 0 ? sum[j > 0 ? j - 1 : 0][t][out] : bias[out];
#pragma unroll
        for (int s = 0; s < kSide; ++s) {
          if (j * kStride + kPhase < kSide) sum[j][t][out] += x[t * kStride + s][in] * w[j * kStride + kPhase][s][v];
        }
      }
    }
  }
}

// The same for a row of all planes, `apart` elements from each other.
template <int kPhase>
__device__ __forceinline__ void add_rows(Sums& sum, const Weights& w, const T* smem, int apart, const float (&bias)[kOut]) {
#pragma unroll
  for (int o = 0; o < kDepth + kPlanes - 1; ++o) {
    float x[kWide][kIn];
#pragma unroll
    for (int k = 0; k < kWide; ++k) widen_all(x[k], load<T, kIn>(smem + o * apart + k * kChannels));
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      if (o >= plane && o - plane < kDepth) add_row<kPhase>(sum[plane], x, w[o >= plane ? o - plane : 0], bias, o == plane);
    }
  }
}

// The weights of kLanes * kMaps channels from `first` on, in memory (channel, tap).
struct WeightSource {
  static constexpr int kPiece = 16 / sizeof(T), kPieces = kLanes * kMaps * kTaps / kPiece, kOwn = kMaps * kTaps;
  const T* gmem;
  int first, channels;
  bool flip;

  // Those of this thread, by way of shared memory; zeros behind the last channel.
  __device__ __forceinline__ void load(Weights& w, uint4* smem) const {
    bring(smem);
    __syncthreads();
    float own[kOwn];
    read(own, reinterpret_cast<const T*>(smem) + threadIdx.x % kLanes * kOwn);
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kMaps; ++v) {
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        w[tap / (kSide * kSide)][tap / kSide % kSide][tap % kSide][v] = flip ? own[v * kTaps + kTaps - 1 - tap] : own[v * kTaps + tap];
      }
    }
  }

 private:
  // In whole vectors, all of them on their way at once.
  __device__ __forceinline__ void bring(uint4* smem) const {
    constexpr int kTimes = (kPieces - 1) / Config::kThreads + 1;
    const T* from = gmem + static_cast<long long>(first) * kTaps;
    const int there = (channels - first) * kTaps;
    uint4 pieces[kTimes];
#pragma unroll
    for (int k = 0; k < kTimes; ++k) {
      const int i = threadIdx.x + k * Config::kThreads;
      pieces[k] = load_or_zero(from + i * kPiece, i < kPieces && i * kPiece < there);
    }
#pragma unroll
    for (int k = 0; k < kTimes; ++k) {
      const int i = threadIdx.x + k * Config::kThreads;
      if (i < kPieces) smem[i] = pieces[k];
    }
  }
  // Half types by two where a thread's weights are whole words.
  static __device__ __forceinline__ void read(float (&own)[kOwn], const T* smem) {
    constexpr int kTogether = sizeof(T) == 2 && kOwn % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kOwn; i += kTogether) {
      float values[kTogether];
      widen_all(values, dnnarray::load<T, kTogether>(smem + i));
#pragma unroll
      for (int j = 0; j < kTogether; ++j) own[i + j] = values[j];
    }
  }
};

// Where a thread stores.
struct Target {
  const T* residual;
  T* y;
  long long d, h, w;
  int columns, planes;

  __device__ __forceinline__ void put(const float (&sum)[kStrip][kOut], long long at) const {
    const DepthwiseFinish<T, kOut, Config::kAdded, Config::kRelu> finish{residual, y};
    if (columns == kStrip) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) finish.put(sum[t], at + t * w);
    } else {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
        if (t < columns) finish.put(sum[t], at + t * w);
      }
    }
  }
  __device__ __forceinline__ void next_row() {
    y += h;
    if (Config::kAdded) residual += h;
  }
};

// Rows of outputs p to `end`, which read `groups` groups of kStride rows of the image from `row` on; `skipped` such groups stand above it.
struct Range {
  int p, end, row, groups, skipped;

  __device__ __forceinline__ Range(int first, int last, int before, int height) : p(first), end(last) {
    const int top = first * kStride - before;
    skipped = min(max(-top, 0) / kStride, kAlive - 1);
    row = top + skipped * kStride;
    const int inside = (min((last - 1) * kStride - before + kSide, height) - row + kStride - 1) / kStride;
    groups = max(inside, last - first - skipped);  // behind the last one, kAlive - 1 rows of outputs are under way
  }
};

__device__ __forceinline__ void walk(const T* x, const WeightSource& of_w, const float (&bias)[kOut], const StreamSource& source,
                                     const StreamTile& tile, const Divisor& by_pitch, const Range& range, Target target, int place_of_strip) {
  const int steps = (range.groups + kRows - 1) / kRows, stage = kLines * tile.groups * tile.pitch * kPixel;
  constexpr int kPass = Config::kThreads / (kPixel / 16);
  RowStream<T, kLines, Config::kShare> stream(x, source, tile, range.row, kPass, [&](int pixel) { return split(pixel, by_pitch); });
  const unsigned base = smem_address(smem_memory), barriers = base + kStages * stage;
  const StepRing<kStages> ring{barriers, barriers + kStages * 8};
  ring.begin();
  const auto bring = [&](int place) {
    stream.bring(base + place * stage, source, kPass * kPixel);
    ring.brought(place);
  };
  for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
  Weights w;
  of_w.load(w, smem_memory + (kStages - 1) * (stage / 16));  // the last place to be filled
  const T* from = reinterpret_cast<const T*>(smem_memory) + place_of_strip * kChannels + threadIdx.x % kLanes * kIn;
  Sums sum;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
    for (int j = 0; j < kAlive; ++j) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
#pragma unroll
        for (int v = 0; v < kOut; ++v) sum[plane][j][t][v] = bias[v];
      }
    }
  }
  int coming = range.p - (kAlive - 1) + range.skipped, left = range.groups, place = 0, ahead = ring.kAhead, last = kStages - 2;
  unsigned parity = 0, last_parity = 1;
  const auto emit = [&](int j) {
    if (coming >= range.p && coming < range.end) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        if (plane < target.planes) target.put(sum[plane][j], plane * target.d);
      }
      target.next_row();
    }
    ++coming;
  };
  for (int step = 0; step < steps; ++step, left -= kRows) {
    if (step >= 2) ring.wait_for_all(last, last_parity);
    if (step + ring.kAhead < steps) bring(ahead);
    ring.wait_for_inputs(place, parity);
    const int apart = kLines * tile.pitch * kChannels;
    const T* line = from + place * (stage / static_cast<int>(sizeof(T)));
#pragma unroll 1
    for (int i = 0; i < min(kRows, left); ++i, line += kStride * tile.pitch * kChannels) {
      add_rows<0>(sum, w, line, apart, bias);
      if constexpr (kStride == 2) add_rows<1>(sum, w, line + tile.pitch * kChannels, apart, bias);
      emit(kAlive - 1);
    }
    ring.leave(place);
    const auto next = [](int& at) { return (at = at == kStages - 1 ? 0 : at + 1) == 0; };
    if (next(place)) parity ^= 1;
    next(ahead);
    if (next(last)) last_parity ^= 1;
  }
#pragma unroll
  for (int j = kAlive - 2; j >= 0; --j) emit(j);  // those that end below the image
}

// Neighbouring blocks have the same pixels of other channels; each does `rows` rows of `across` strips of each of its images. Pairs hold (output,
// input) extents and (stride, before) of the axis of depth; by_* divide by what stands before them: chunks of channels, parts of the rows, tiles beside each
// other, groups of planes, strips beside each other, columns that a tile reads.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long batch, long long channels, long long flip, long long chunks, long long by_chunks, long long parts,
    long long by_parts, long long tiles, long long by_tiles, long long depth_groups, long long by_depth_groups, long long across,
    long long by_across, long long pitch, long long by_pitch, long long rows, long long x_n, long long x_h, long long x_w, long long y_n,
    long long y_h, long long y_w, long long height, long long width, long long out_height, long long out_width, long long before_h,
    long long before_w, long long x_d, long long y_d, long long depths, long long depth_steps) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const int groups = kDepth > 1 ? 1 : Config::kThreads / kLanes / i(across), columns = i(across) * kStrip;
  const Quotient by_chunk = split(blockIdx.x, Divisor(chunks, by_chunks));
  const Quotient by_part = split(by_chunk.quotient, Divisor(parts, by_parts));
  const Quotient by_tile = split(by_part.quotient, Divisor(tiles, by_tiles));
  const Quotient by_depth = kDepth > 1 ? split(by_tile.quotient, Divisor(depth_groups, by_depth_groups)) : Quotient{by_tile.quotient * groups, 0};
  const int p = by_part.rest * i(rows), q = by_tile.rest * columns, image = by_depth.quotient;
  const Quotient strip = split(threadIdx.x / kLanes, Divisor(across, by_across));
  const int own = q + strip.rest * kStrip;
  const int first = by_chunk.rest * kChannels, channel = first + threadIdx.x % kLanes * kIn;
  const bool there = channel < channels && own < out_width && strip.quotient < groups && image + strip.quotient < batch;
  const int to = channel * kOut / kIn;
  float bias[kOut];
#pragma unroll
  for (int v = 0; v < kOut; ++v) bias[v] = gmem_bias && there ? widen(gmem_bias[to + v]) : 0.0f;
  const long long at = (image + strip.quotient) * y_n + by_depth.rest * kPlanes * y_d + p * y_h + own * y_w + to;
  const Target target{gmem_residual + at, gmem_y + at, y_d, y_h, y_w, there ? min(i(out_width) - own, kStrip) : 0,
                      kDepth > 1 ? high(depths) - by_depth.rest * kPlanes : 1};
  StreamTile tile{image, i(batch), groups, q * kStride - i(before_w), i(pitch), first, kPixel / 16, kPixel};
  StreamSource source{x_n, x_h, x_w, i(height), i(width), i(channels)};
  const T* x = gmem_x;
  if constexpr (kDepth > 1) {  // planes take the place of images
    x += image * x_n;
    tile.image = by_depth.rest * kPlanes * high(depth_steps) - low(depth_steps);
    tile.images = low(depths);
    tile.groups = kDepth + kPlanes - 1;
    source.n = x_d;
  }
  const int place = (min(strip.quotient, groups - 1) * kLines * tile.pitch) + strip.rest * kStrip * kStride;
  const Range range(p, min(p + i(rows), i(out_height)), i(before_h), i(height));
  walk(x, {gmem_w, first * kMaps / kIn, i(channels) * kMaps / kIn, flip != 0}, bias, source, tile, Divisor(pitch, by_pitch), range, target, place);
}
