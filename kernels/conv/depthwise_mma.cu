// Depthwise convolution of half types on the tensor cores: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s - before] *
// w[c, r, s] + bias[c]). For one channel, a row of the matrix A is a strip of 8 neighbouring pixels; B places a row of the window for each
// of 8 outputs, kColumns beside and kRows below each other. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down `across` strips of each of `groups` images (16 strips at most:
//          the rows of A), a step of kRows rows after the other, kStages of them under way. A warp owns 4 channels: two words of a pixel,
//          whose halves it brings together with those of another pixel. An input row is used once, for all outputs that it meets; their
//          sums are alive in registers, move on from step to step and leave for a place in shared memory, from where the block
//          stores whole pixels.
// Needs:   pointers aligned to 16 bytes, channels a multiple of 8; a square window of kSide; strides and dilations of 1; less than 2^31
//          blocks; tiles whose elements are less than 2^31 apart.
// Bound:   memory: x and y once.
// Zeros of B times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/depthwise_stream.cuh"
#include "dnnarray/reduce.cuh"
#include "dnnarray/tensor_core.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 7;
  static constexpr int kShare = 3;
  static constexpr int kKept = 5;
  static constexpr int kStages = 4;
  static constexpr int kMostThreads = 256;
  static constexpr int kBlocks = 2;
};
#define DNNARRAY_ENTRY conv_depthwise_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStages = Config::kStages, kStrips = 16, kSlots = 8;
constexpr int kColumns = kSide > 5 ? 2 : 4, kRows = kSlots / kColumns;  // outputs of a strip: 8 pixels are kColumns + kSide - 1 at least
constexpr int kBands = kSide + kRows - 1;                               // rows of inputs that outputs meet
constexpr int kAlive = (kBands - 1) / kRows + 1, kLag = kAlive - 1;     // outputs under way; steps until the first ones are complete
constexpr int kKept = Config::kKept;                                     // of the bands, in registers
constexpr int kOwn = 4, kVector = 8;                                    // channels of a warp and of 16 bytes
constexpr int kWarps = kVector / kOwn, kPass = kWarps * kWarp;          // for 16 bytes of a pixel; pixels that the block brings at once
constexpr int kApart = kSlots + 1;                                      // pixels from strip to strip in shared memory: other banks
constexpr int kLeaving = 4;                                             // steps whose outputs are on their way

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
    smem[tap * channels + channel] = first + channel < weights.channels ? weights.at(first + channel, r, tap - r * kSide) : 0.0f;
  }
}

// B for each row of inputs that an output meets, for the channels of a warp. A column is an output, a row a pixel: first 0 and 4, then 1 and 5.
// The last ones, for which there are no registers, wait in shared memory.
struct Bands {
  unsigned kept[kKept][kOwn];
  uint4* smem;

  // From weights (taps, kVector `vectors`) in shared memory.
  __device__ __forceinline__ Bands(uint4* smem_bands, const float* smem_w, int vectors) : smem(smem_bands + threadIdx.x) {
    const int lane = threadIdx.x % kWarp, slot = lane / 4, u = slot / kColumns, v = slot % kColumns, pitch = kVector * vectors;
    const float* from = smem_w + threadIdx.x / kWarp * kOwn;
#pragma unroll
    for (int b = 0; b < kBands; ++b) {
      unsigned one[kOwn];
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        float w[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int s = lane % 4 + 4 * half - v, r = b - u;
          const bool there = s >= 0 && s < kSide && r >= 0 && r < kSide;
          w[half] = there ? from[(r * kSide + s) * pitch + c] : 0.0f;
        }
        one[c] = narrow_pair(w[0], w[1], T());
        if (b < kKept) kept[b < kKept ? b : 0][c] = one[c];
      }
      if (b >= kKept) smem[(b - kKept) * blockDim.x] = uint4{one[0], one[1], one[2], one[3]};
      asm volatile("" ::: "memory");  // not all addresses at once
    }
  }
  __device__ __forceinline__ uint4 get(int b) const {
    if (b >= kKept) return smem[(b - kKept) * blockDim.x];
    return uint4{kept[b < kKept ? b : 0][0], kept[b < kKept ? b : 0][1], kept[b < kKept ? b : 0][2], kept[b < kKept ? b : 0][3]};
  }
};

using Sums = float[kAlive][kOwn][4];

// The outputs that row kPhase of a step meets; in the first one they move on and new ones begin with the bias.
template <int kPhase>
__device__ __forceinline__ void add_row(Sums& sum, const Bands& bands, const unsigned char* low, const unsigned char* high, int pixel,
                                        const float4* smem_bias) {
  const uint2 words[4] = {*reinterpret_cast<const uint2*>(low), *reinterpret_cast<const uint2*>(low + 4 * pixel),
                          *reinterpret_cast<const uint2*>(high), *reinterpret_cast<const uint2*>(high + 4 * pixel)};
  if constexpr (kPhase == 0) {
#pragma unroll
    for (int j = kAlive - 1; j > 0; --j) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][c][i] = sum[j - 1][c][i];
      }
    }
    const float4 bias = *smem_bias;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[0][0][i] = bias.x;
      sum[0][1][i] = bias.y;
      sum[0][2][i] = bias.z;
      sum[0][3][i] = bias.w;
    }
  }
  uint4 b[kAlive];
#pragma unroll
  for (int j = 0; j < kAlive; ++j) {
    if (j * kRows + kPhase < kBands) b[j] = bands.get(j * kRows + kPhase);
  }
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    const auto halves = [&](int i) {
      const unsigned first = c < 2 ? words[i].x : words[i].y, second = c < 2 ? words[i + 1].x : words[i + 1].y;
      return __byte_perm(first, second, c % 2 ? 0x7632 : 0x5410);
    };
    const unsigned a0 = halves(0), a1 = halves(2);
#pragma unroll
    for (int j = kAlive - 1; j >= 0; --j) {  // the oldest first: the next ones move to where they were
      const unsigned own = c == 0 ? b[j].x : c == 1 ? b[j].y : c == 2 ? b[j].z : b[j].w;
      if (j * kRows + kPhase < kBands) multiply_16x8x8(sum[j][c], a0, a1, own, T());
    }
  }
}

template <int kPhase>
__device__ __forceinline__ void add_rows(Sums& sum, const Bands& bands, const unsigned char* low, const unsigned char* high, int pixel, int line,
                                         const float4* smem_bias) {
  add_row<kPhase>(sum, bands, low, high, pixel, smem_bias);
  if constexpr (kPhase + 1 < kRows) add_rows<kPhase + 1>(sum, bands, low + line, high + line, pixel, line, smem_bias);
}

__device__ __forceinline__ float finished(float sum) { return Config::kRelu && sum < 0.0f ? 0.0f : sum; }

// The channels of a thread's four outputs that are complete.
__device__ __forceinline__ void put(unsigned char* smem, const float (&sum)[kOwn][4], int pixel) {
  const int lane = threadIdx.x % kWarp, first = lane / 4 * kApart + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 words{narrow_pair(finished(sum[0][i]), finished(sum[1][i]), T()), narrow_pair(finished(sum[2][i]), finished(sum[3][i]), T())};
    *reinterpret_cast<uint2*>(smem + (first + i % 2 + i / 2 * 8 * kApart) * pixel) = words;
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

// What a block does: outputs of rows p to `end` and from column q on.
struct Part {
  StreamTile tile;
  int across, p, q, end;

  __device__ __forceinline__ Part(const Problem& a, unsigned block, int images, int strips, int groups, int rows) : across(strips) {
    const int vectors = blockDim.x / kPass, wide = across * kColumns, channels = kVector * vectors;
    const Quotient by_chunk = divide(block, (a.source.channels - 1) / channels + 1);
    const Quotient by_part = divide(by_chunk.quotient, (a.out_height - 1) / rows + 1);
    const Quotient by_tile = divide(by_part.quotient, (a.out_width - 1) / wide + 1);
    p = by_part.rest * rows;
    q = by_tile.rest * wide;
    end = min(p + rows, a.out_height);
    tile = {by_tile.quotient * groups, images, groups, q - a.before_w, wide + 8 - kColumns, by_chunk.rest * channels, vectors, (vectors | 1) * 16};
  }
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

// A pixel of a step's outputs that a thread stores 16 bytes of, the first or the second.
struct Place {
  int image, row, column, channel;  // row: below the first of the step
  bool there;

  __device__ __forceinline__ Place(const Problem& a, const StreamTile& tile, int q, int across, int k) {
    const Quotient own = divide(threadIdx.x, tile.vectors);
    const int pixel = own.quotient + k * kPass, slot = pixel % kSlots;
    const Quotient by_strip = divide(pixel / kSlots, across);
    channel = tile.first + own.rest * kVector;
    image = tile.image + by_strip.quotient;
    row = slot / kColumns;
    column = q + by_strip.rest * kColumns + slot % kColumns;
    there = by_strip.quotient < tile.groups && image < tile.images && column < a.out_width && channel < a.source.channels;
  }
  __device__ __forceinline__ T* target(const Problem& a, int p) const {
    return a.y + image * a.y_n + (p + row) * a.y_h + column * a.y_w + channel;
  }
};

// Computes again what is NaN of the outputs that this thread stored.
__device__ __forceinline__ void repair(const Problem& a, const Part& part) {
#pragma unroll 1
  for (int i = 0; i < 2 * 8; ++i) {
    const Place place(a, part.tile, part.q, part.across, i / 8);
    for (int at = part.p + place.row; place.there && at < part.end; at += kRows) {
      T* to = place.target(a, at - place.row) + i % 8;
      if (widen(*to) == widen(*to)) continue;
      *to = narrow<T>(by_definition(a, place.image, at, place.column, place.channel + i % 8));
    }
  }
}

// Stores the outputs of one step after the other: of a pixel and of the same one eight strips further.
struct Drain {
  T* to;
  int apart, left;  // elements between the pixels, rows that are to come
  unsigned from;
  bool there[2];

  __device__ __forceinline__ Drain(const Problem& a, const Part& part) {
    const Quotient own = divide(threadIdx.x, part.tile.vectors);
    const Place first(a, part.tile, part.q, part.across, 0), second(a, part.tile, part.q, part.across, 1);
    to = first.target(a, part.p);
    apart = static_cast<int>(second.target(a, part.p) - to);
    left = part.end - part.p - first.row;
    there[0] = first.there;
    there[1] = second.there;
    from = (own.quotient / kSlots * kApart + own.quotient % kSlots) * part.tile.pixel + own.rest * 16;
  }

  // Whether a number was not finite.
  __device__ __forceinline__ bool store_step(const unsigned char* smem, const Problem& a, int pixel) {
    unsigned strange = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (left <= 0 || !there[k]) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(smem + from + k * (kPass / kSlots * kApart) * pixel);
      Vec<T, kVector> values;
      memcpy(&values, &v, sizeof v);
      store(to + k * apart, values);
      strange |= not_finite(v.x, not_finite(v.y, not_finite(v.z, not_finite(v.w, 0, T()), T()), T()), T()) & 0x7fff7fffu;
    }
    left -= kRows;
    to += kRows * a.y_h;
    return strange != 0;
  }
};

// A block's outputs. Whether a number was not finite.
__device__ __forceinline__ bool walk(const Problem& a, const Part& part) {
  const StreamTile& tile = part.tile;
  const int across = part.across, p = part.p, q = part.q, end = part.end;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, stage = kRows * tile.groups * tile.pitch * tile.pixel;
  const int outputs = kStrips * kApart * tile.pixel;  // bytes of a step
  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  unsigned char* smem_y = smem + kStages * stage;
  uint4* smem_bands = reinterpret_cast<uint4*>(smem_y + kLeaving * outputs);
  float4* smem_bias = reinterpret_cast<float4*>(smem_bands + (kBands - kKept) * blockDim.x);
  const unsigned base = smem_address(smem), barriers = smem_address(smem_bias + kWarps * tile.vectors);
  const StepRing<kStages> ring{barriers, barriers + kStages * 8};
  ring.begin();
  const int steps = (end - p - 1) / kRows + 1 + kLag;
  RowStream<T, kRows, Config::kShare> stream(a.x, a.source, tile, p - a.before_h, kPass);
  const auto bring = [&](int place) {
    stream.bring(base + place * stage, a.source, kPass * tile.pixel);
    ring.brought(place);
  };
  for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
  if (threadIdx.x < kVector * tile.vectors) {
    const int channel = tile.first + threadIdx.x;
    reinterpret_cast<float*>(smem_bias)[threadIdx.x] = a.bias && channel < a.source.channels ? widen(a.bias[channel]) : 0.0f;
  }
  float* smem_w = reinterpret_cast<float*>(smem_y);  // until the first outputs
  stage_weights(smem_w, a.weights, tile.first, kVector * tile.vectors);
  __syncthreads();
  const Bands bands(smem_bands, smem_w, tile.vectors);
  Drain drain(a, part);
  __syncthreads();
  int spot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Quotient by_strip = divide(lane / 4 + half * 8, across);
    const int place = by_strip.quotient < tile.groups ? by_strip.quotient * kRows * tile.pitch + by_strip.rest * kColumns : 0;
    spot[half] = (place + lane % 4) * tile.pixel + warp * (2 * kOwn);
  }

  bool strange = false;
  const auto leave = [&](int step) { strange |= drain.store_step(smem_y + step % kLeaving * outputs, a, tile.pixel); };
  Sums sum{};
  for (int step = 0; step < steps; ++step) {
    const int place = step % kStages, other = (step + ring.kAhead) % kStages;  // also that of the step before the last
    if (step >= 2) ring.wait_for_all(other, (step - 2) / kStages % 2);
    if (step + ring.kAhead < steps) bring(other);
    if (step >= kLag + 2) leave(step - 2);
    ring.wait_for_inputs(place, step / kStages % 2);
    const unsigned char *low = smem + place * stage + spot[0], *high = smem + place * stage + spot[1];
    add_rows<0>(sum, bands, low, high, tile.pixel, tile.pitch * tile.pixel, smem_bias + warp);
    put(smem_y + step % kLeaving * outputs + warp * (2 * kOwn), sum[kAlive - 1], tile.pixel);
    ring.leave(place);
  }
  __syncthreads();
  for (int step = max(steps - 2, kLag); step < steps; ++step) leave(step);
  return strange;
}

// Neighbouring blocks have the same pixels of other channels; each does `rows` rows of outputs.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, Config::kBlocks) DNNARRAY_ENTRY(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, long long batch, long long channels,
    long long flip, long long across, long long groups, long long rows, long long x_n, long long x_h, long long x_w, long long y_n,
    long long y_h, long long y_w, long long height, long long width, long long out_height, long long out_width, long long before_h,
    long long before_w) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Problem problem{x, bias, y, {x_n, x_h, x_w, i(height), i(width), i(channels)}, {w, i(channels), flip != 0}, y_n, y_h, y_w,
                        i(out_height), i(out_width), i(before_h), i(before_w)};
  const auto part = [&](unsigned block) { return Part(problem, block, i(batch), i(across), i(groups), i(rows)); };
  // Computed anew, so that nothing of it takes registers in between.
  if (walk(problem, part(blockIdx.x))) repair(problem, part(block_again()));
}
