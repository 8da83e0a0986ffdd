// Depthwise convolution of half types on the tensor cores: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q
// + s - before] * w[c, r, s] + bias[c]). A row of the matrix A is a strip: 8 neighbouring pixels of two channels, as
// they stand in memory. B places a row of the window for each of 4 outputs of both channels: kColumns beside and kRows
// below each other. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down `across` strips of each of `groups` images (16
//          strips at most: the rows of A), a step of two rows after the other, kStages of them under way. Each warp
//          owns 8 channels: a word of a pixel is an element of A for two of them, so that nothing is transposed. An
//          input row is used once, for all outputs that it meets; their sums are alive in registers, move on from step
//          to step and leave for a place in shared memory, from where the block stores whole pixels.
// Needs:   pointers aligned to 16 bytes, channels a multiple of 8; a square window of kSide; strides and dilations of
//          1; less than 2^31 blocks; tiles whose elements are less than 2^31 apart.
// Bound:   memory: x and y once.
// Zeros of B times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/core/reduce.cuh"
#include "conv/depthwise_stream.cuh"
#include "dnnarray/mma/warp.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 7;
  static constexpr int kShare = 4;
  static constexpr int kStages = 4;
  static constexpr int kMostThreads = 192;
  static constexpr int kBlocks = 2;
};
struct Arguments {
  int batch;
  int channels;
  int flip;
  int across;
  int groups;
  int rows;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kLines = 2, kStages = Config::kStages, kPairs = 4, kStrips = 16, kSlots = 4;
constexpr int kColumns = kSide > 5 ? 2 : 4,
              kRows = kSlots / kColumns;  // outputs of a strip: 8 pixels are kColumns + kSide - 1 at least
constexpr int kBands = kSide + kRows - 1,
              kAlive = kBands / kRows;  // rows of inputs that outputs meet; outputs under way
constexpr int kLag = (kSide - 1) / kLines,
              kBatches = kLines / kRows;                // steps until the first outputs; matrices of outputs in a step
constexpr int kBatch = kStrips * kSlots, kLeaving = 4;  // pixels of such a matrix; steps whose outputs are on their way

extern __shared__ uint4 smem_memory[];

struct Weights {
  const T* w;
  int channels;
  bool flip;

  __device__ __forceinline__ float at(int channel, int r, int s) const {
    const int tap = r * kSide + s;
    return widen(w[static_cast<long long>(channel) * (kSide * kSide) + (flip ? kSide * kSide - 1 - tap : tap)]);
  }
};

__device__ __forceinline__ void stage_weights(float* smem, const Weights& weights, int first, int channels) {
  for (int i = threadIdx.x; i < kSide * kSide * channels; i += blockDim.x) {
    const int channel = i / (kSide * kSide), tap = i - channel * (kSide * kSide), r = tap / kSide;
    smem[tap * channels + channel] =
        first + channel < weights.channels ? weights.at(first + channel, r, tap - r * kSide) : 0.0f;
  }
}

// B for each row of inputs that an output meets, for a warp's pairs of channels. A column is (output, channel of the
// pair), a row (pixel, channel of the pair): of the two channels in a register one is zero, so that both registers of a
// lane wait in one.
struct Bands {
  unsigned at[kBands][kPairs], pick[2];

  // From weights (taps, 8 `vectors`) in shared memory.
  __device__ __forceinline__ Bands(const float* smem_w, int vectors) {
    const int lane = threadIdx.x % kWarp, own = lane / 4 % 2, slot = lane / 8, u = slot / kColumns, v = slot % kColumns;
#pragma unroll
    for (int b = 0; b < kBands; ++b) {
#pragma unroll
      for (int c = 0; c < kPairs; ++c) {
        float w[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int s = lane % 4 + 4 * half - v, r = b - u, k = threadIdx.x / kWarp * 8 + 2 * c + own;
          const bool there = s >= 0 && s < kSide && r >= 0 && r < kSide;
          w[half] = there ? smem_w[(r * kSide + s) * 8 * vectors + k] : 0.0f;
        }
        at[b][c] = narrow_pair(w[0], w[1], T());
      }
      compiler_fence();  // not all addresses at once
    }
  }
  // How bytes go to the place of the lane's own channel, which is `own` of the pair.
  __device__ __forceinline__ void choose(int own) {
    pick[0] = own ? 0x1044 : 0x4410;
    pick[1] = own ? 0x3244 : 0x4432;
  }
  __device__ __forceinline__ void get(unsigned (&b)[2], int band, int c) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) b[half] = __byte_perm(at[band][c], 0, pick[half]);
  }
};

// The pixels of a lane's two strips in a row of inputs: four pairs of channels each.
__device__ __forceinline__ void load_row(uint4 (&words)[4], const unsigned char* low, const unsigned char* high,
                                         int pixel) {
  words[0] = *reinterpret_cast<const uint4*>(low);
  words[1] = *reinterpret_cast<const uint4*>(high);
  words[2] = *reinterpret_cast<const uint4*>(low + 4 * pixel);
  words[3] = *reinterpret_cast<const uint4*>(high + 4 * pixel);
}

using Sums = float[kAlive][kPairs][4];

// The outputs that a row of inputs meets, `line` counted within a step; new outputs begin with the bias.
template <int kLine>
__device__ __forceinline__ void add_row(Sums& sum, Bands& bands, const volatile int* smem_own, const uint4 (&words)[4],
                                        const float2* smem_bias) {
  constexpr int kPhase = kLine % kRows;
  if constexpr (kPhase == 0) {
#pragma unroll
    for (int j = kAlive - 1; j > 0; --j) {
#pragma unroll
      for (int c = 0; c < kPairs; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][c][i] = sum[j - 1][c][i];
      }
    }
#pragma unroll
    for (int c = 0; c < kPairs; ++c) {
      const float2 bias = smem_bias[c];
      sum[0][c][0] = sum[0][c][2] = bias.x;
      sum[0][c][1] = sum[0][c][3] = bias.y;
    }
  }
  // From memory in each row: else the compiler takes the registers apart for good.
  bands.choose(smem_own[threadIdx.x / 4 % 2]);
#pragma unroll
  for (int c = 0; c < kPairs; ++c) {
    const auto part = [c](const uint4& v) { return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w; };
    unsigned a[4] = {part(words[0]), part(words[1]), part(words[2]), part(words[3])};
#pragma unroll
    for (int i = 0; i < 4; ++i) opaque(a[i]);  // put together once
#pragma unroll
    for (int j = kAlive - 1; j >= 0; --j) {  // the oldest first: the next ones move to where they were
      unsigned b[2];
      bands.get(b, j * kRows + kPhase, c);
      Mma<T>::add(sum[j][c], a, b);
    }
  }
}

__device__ __forceinline__ float finished(float sum) { return Config::kRelu && sum < 0.0f ? 0.0f : sum; }

// The eight channels of the two outputs of a thread that are complete.
__device__ __forceinline__ void put(unsigned char* smem, const float (&sum)[kPairs][4], int pixel) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned w[kPairs];
#pragma unroll
    for (int c = 0; c < kPairs; ++c)
      w[c] = narrow_pair(finished(sum[c][2 * half]), finished(sum[c][2 * half + 1]), T());
    *reinterpret_cast<uint4*>(smem + (lane + half * kWarp) * pixel) = uint4{w[0], w[1], w[2], w[3]};
  }
}

// Extents and distances, in elements.
struct Problem {
  const T *x, *bias;
  T* y;
  StreamSource source;
  Weights weights;
  long long y_n, y_h, y_w;
  int out_height, out_width, before_h, before_w;
};

// One output by the definition.
__device__ __forceinline__ float by_definition(const Problem& a, int n, int p, int q, int channel) {
  float sum = a.bias ? widen(a.bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    const int r = tap / kSide, s = tap - r * kSide, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
    if (at_h < 0 || at_h >= a.source.height || at_w < 0 || at_w >= a.source.width) continue;
    sum += widen(a.x[n * a.source.n + at_h * a.source.h + at_w * a.source.w + channel]) * a.weights.at(channel, r, s);
  }
  return finished(sum);
}

// Which two pixels of a matrix of outputs a thread stores 16 bytes of.
struct OutputPlace {
  int image, row, column, channel;  // row: below the first of the matrix
  bool there;

  __device__ __forceinline__ OutputPlace(const Problem& a, const StreamTile& tile, int q, int across, int k) {
    const Quotient own = divide(threadIdx.x, tile.vectors);
    const int pixel = own.quotient + k * kWarp, slot = pixel % kSlots;
    const Quotient by_strip = divide(pixel / kSlots, across);
    channel = tile.first + own.rest * 8;
    image = tile.image + by_strip.quotient;
    row = slot / kColumns;
    column = q + by_strip.rest * kColumns + slot % kColumns;
    there =
        by_strip.quotient < tile.groups && image < tile.images && column < a.out_width && channel < a.source.channels;
  }
  __device__ __forceinline__ T* target(const Problem& a, int p) const {
    return a.y + image * a.y_n + (p + row) * a.y_h + column * a.y_w + channel;
  }
};

// Computes again what is NaN of the outputs that this thread stored.
__device__ __forceinline__ void repair(const Problem& a, const StreamTile& tile, int p, int q, int end, int across) {
#pragma unroll 1
  for (int i = 0; i < 2 * 8; ++i) {
    const OutputPlace place(a, tile, q, across, i / 8);
    for (int at = p + place.row; place.there && at < end; at += kRows) {
      T* to = place.target(a, at - place.row) + i % 8;
      if (widen(*to) == widen(*to)) continue;
      *to = narrow<T>(by_definition(a, place.image, at, place.column, place.channel + i % 8));
    }
  }
}

// Stores the outputs of one step after the other, 16 bytes of two pixels of each matrix a thread.
struct Drain {
  T* to;
  int apart, rows[2];  // elements between the pixels, rows that are to come for each
  unsigned from;

  __device__ __forceinline__ Drain(const Problem& a, const StreamTile& tile, int p, int q, int end, int across) {
    const Quotient own = divide(threadIdx.x, tile.vectors);
    from = own.quotient * tile.pixel + own.rest * 16;
    const OutputPlace first(a, tile, q, across, 0), second(a, tile, q, across, 1);
    to = first.target(a, p);
    apart = static_cast<int>(second.target(a, p) - to);
    rows[0] = first.there ? end - p - first.row : 0;
    rows[1] = second.there ? end - p - second.row : 0;
  }

  // Whether a number was not finite.
  __device__ __forceinline__ bool store_step(const unsigned char* smem, const Problem& a, int pixel) {
    unsigned strange = 0;
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (rows[k] <= b * kRows) continue;
        const uint4 v = *reinterpret_cast<const uint4*>(smem + from + (b * kBatch + k * kWarp) * pixel);
        Vec<T, 8> values;
        memcpy(&values, &v, sizeof v);
        store(to + k * apart + b * a.y_h, values);
        strange |=
            not_finite(v.x, not_finite(v.y, not_finite(v.z, not_finite(v.w, 0, T()), T()), T()), T()) & 0x7fff7fffu;
      }
    }
    to += kLines * a.y_h;
    rows[0] -= kLines;
    rows[1] -= kLines;
    return strange != 0;
  }
};

// The tile's outputs from row p on, before row `end`.
__device__ __forceinline__ void walk(const Problem& a, const StreamTile& tile, int across, int p, int q, int end) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp,
            stage = kLines * tile.groups * tile.pitch * tile.pixel;
  const int matrices = kBatches * kBatch * tile.pixel;  // bytes of the outputs of a step
  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  unsigned char* smem_y = smem + kStages * stage;
  float2* smem_bias = reinterpret_cast<float2*>(smem_y + kLeaving * matrices);
  const unsigned base = shared_address(smem), barriers = shared_address(smem_bias + 4 * tile.vectors);
  const StepRing<kStages> ring{barriers, barriers + kStages * 8};
  ring.begin();
  const int steps = (end - p - 1) / kLines + 1 + kLag;
  RowStream<T, kLines, Config::kShare> stream(a.x, a.source, tile, p - a.before_h, kWarp);
  const auto bring = [&](int place) {
    stream.bring(base + place * stage, a.source, kWarp * tile.pixel);
    ring.brought(place);
  };
  for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
  if (threadIdx.x < 8 * tile.vectors) {
    const int channel = tile.first + threadIdx.x;
    reinterpret_cast<float*>(smem_bias)[threadIdx.x] =
        a.bias && channel < a.source.channels ? widen(a.bias[channel]) : 0.0f;
  }
  float* smem_w = reinterpret_cast<float*>(smem_y);  // until the first outputs
  stage_weights(smem_w, a.weights, tile.first, 8 * tile.vectors);
  __shared__ volatile int smem_own[2];
  if (threadIdx.x < 2) smem_own[threadIdx.x] = threadIdx.x;
  __syncthreads();
  Bands bands(smem_w, tile.vectors);
  Drain drain(a, tile, p, q, end, across);
  __syncthreads();
  int spot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Quotient by_strip = divide(lane / 4 + half * 8, across);
    const int place =
        by_strip.quotient < tile.groups ? by_strip.quotient * kLines * tile.pitch + by_strip.rest * kColumns : 0;
    spot[half] = (place + lane % 4) * tile.pixel + warp * 16;
  }

  bool strange = false;
  const auto leave = [&](int step) { strange |= drain.store_step(smem_y + step % kLeaving * matrices, a, tile.pixel); };
  Sums sum{};
  int place = 0, ahead = ring.kAhead,
      last = kStages - 2;  // of this step, of the one to be brought, of the one before the last
  unsigned parity = 0, last_parity = 1;
  for (int step = 0; step < steps; ++step) {
    if (step >= 2) ring.wait_for_all(last, last_parity);
    if (step + ring.kAhead < steps) bring(ahead);
    if (step >= kLag + 2) leave(step - 2);
    ring.wait_for_inputs(place, parity);
    const unsigned char *low = smem + place * stage + spot[0], *high = smem + place * stage + spot[1];
    unsigned char* done = smem_y + step % kLeaving * matrices + warp * 16;
    const int line = tile.pitch * tile.pixel;
    uint4 words[kLines][4];
    load_row(words[0], low, high, tile.pixel);
    load_row(words[1], low + line, high + line, tile.pixel);
    add_row<0>(sum, bands, smem_own, words[0], smem_bias + warp * kPairs);
    if constexpr (kRows == 1) put(done, sum[kAlive - 1], tile.pixel);
    add_row<1>(sum, bands, smem_own, words[1], smem_bias + warp * kPairs);
    put(done + (kBatches - 1) * kBatch * tile.pixel, sum[kAlive - 1], tile.pixel);
    ring.leave(place);
    const auto next = [](int& at) { return (at = at == kStages - 1 ? 0 : at + 1) == 0; };
    if (next(place)) parity ^= 1;
    next(ahead);
    if (next(last)) last_parity ^= 1;
  }
  __syncthreads();
  for (int step = max(steps - 2, kLag); step < steps; ++step) leave(step);
  if (strange) repair(a, tile, p, q, end, across);
}

// Neighbouring blocks have the same pixels of other channels; each does `rows` rows of outputs.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const int vectors = blockDim.x / kWarp, wide = a.across * kColumns;
  const Problem problem{x,
                        bias,
                        y,
                        {a.x_strides.n, a.x_strides.h, a.x_strides.w, a.axes.h.space, a.axes.w.space, a.channels},
                        {weight, a.channels, a.flip != 0},
                        a.y_strides.n,
                        a.y_strides.h,
                        a.y_strides.w,
                        a.axes.h.out,
                        a.axes.w.out,
                        a.axes.h.before,
                        a.axes.w.before};
  const Quotient by_chunk = divide(blockIdx.x, (a.channels - 1) / (8 * vectors) + 1);
  const Quotient by_part = divide(by_chunk.quotient, (a.axes.h.out - 1) / a.rows + 1);
  const Quotient by_tile = divide(by_part.quotient, (a.axes.w.out - 1) / wide + 1);
  const int p = by_part.rest * a.rows, q = by_tile.rest * wide;
  const StreamTile tile{
      by_tile.quotient * a.groups, a.batch, a.groups,          q - a.axes.w.before, wide + 8 - kColumns,
      by_chunk.rest * 8 * vectors, vectors, (vectors | 1) * 16};
  walk(problem, tile, a.across, p, q, min(p + a.rows, a.axes.h.out));
}
