// Depthwise convolution of half types on the tensor cores: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s - before] *
// w[c, r, s] + bias[c]). For each channel, row r of the window is a banded matrix B_r[k][q] = w[r, k - q] of 16 inputs and 8 outputs: a row
// of inputs times B_r is what it adds to 8 outputs r rows above. Products are exact and sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block of 8 warps owns 16 channels of a tile of outputs: `across` strips of 8 columns
//          times `groups` groups of kGroup rows, at most 16 of both together: those are the rows of the matrix A. Inputs stand in shared
//          memory as a plane for each pair of channels; a warp owns a pair, takes every input row once and keeps the kGroup rows of
//          results in registers, then writes them over its plane, from where the block stores whole pixels. The next tile comes to
//          the second-level cache meanwhile.
// Needs:   pointers aligned to 16 bytes, channels a multiple of 8; a square window of kSide; strides and dilations of 1; planes of at most
//          128 kShare words; less than 2^31 tiles.
// Bound:   memory: x and y once.
// Zeros of a band times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/depthwise.cuh"
#include "dnnarray/reduce.cuh"
#include "dnnarray/tensor_core.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 3;
  static constexpr int kGroup = 8;
  static constexpr int kShare = 10;
};
#define DNNARRAY_ENTRY conv_depthwise_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kGroup = Config::kGroup, kPairs = 8, kWarps = 8, kThreads = kWarps * kWarp, kStrip = 8;
constexpr int kShare = Config::kShare;  // halves of pixels that a thread brings

extern __shared__ unsigned smem_words[];

// Extents and distances that all threads share, in shared memory: in registers they would crowd out what a tile needs. Words hold a pair of
// channels.
struct Problem {
  const T *x, *w, *bias;
  T* y;
  long long x_n, x_h, x_w, y_n, y_h, y_w;
  int channels, height, width, out_height, out_width, before_h, before_w, across, groups, pitch, plane, rows, tiles_w, tiles_h;
  bool flip;

  __device__ __forceinline__ float weight(int channel, int r, int s) const {
    const int tap = r * kSide + s;
    return widen(w[static_cast<long long>(channel) * (kSide * kSide) + (flip ? kSide * kSide - 1 - tap : tap)]);
  }
};

struct Tile {
  long long n;
  int p, q, first;  // first row, column and channel
};

// A thread's share of a tile's inputs: halves of pixels, 128 pixels from one to the next. f(number, address, whether it is in the image).
template <typename F>
__device__ __forceinline__ void each_share(const Problem& a, const Tile& tile, F f) {
  const int channel = tile.first + threadIdx.x % 2 * 8, top = tile.p - a.before_h, left = tile.q - a.before_w;
  const int step_row = kThreads / 2 / a.pitch, step_column = kThreads / 2 - step_row * a.pitch;
  int row = threadIdx.x / 2 / a.pitch, column = threadIdx.x / 2 - row * a.pitch;
  const T* from = a.x + tile.n * a.x_n + (top + row) * a.x_h + (left + column) * a.x_w + channel;
  const long long step = step_row * a.x_h + step_column * a.x_w, wrap = a.x_h - a.pitch * a.x_w;
  const unsigned height = channel < a.channels ? max(min(a.height, top + a.rows), 0) : 0;
#pragma unroll
  for (int k = 0; k < kShare; ++k) {
    f(k, from, static_cast<unsigned>(top + row) < height && static_cast<unsigned>(left + column) < static_cast<unsigned>(a.width));
    column += step_column;
    row += step_row;
    from += step;
    if (column >= a.pitch) column -= a.pitch, ++row, from += wrap;
  }
}

// Brings the tile's inputs to the planes, zeros outside of the image.
__device__ __forceinline__ void bring_tile(unsigned* smem, const Problem& a, const Tile& tile) {
  uint4 v[kShare];
  each_share(a, tile, [&](int k, const T* from, bool there) { v[k] = load_or_zero(from, there); });
  unsigned* to = smem + threadIdx.x % 2 * 4 * a.plane + threadIdx.x / 2;
#pragma unroll
  for (int k = 0; k < kShare; ++k) {
    if (static_cast<int>(threadIdx.x) / 2 + k * (kThreads / 2) >= a.rows * a.pitch) break;
    to[k * (kThreads / 2)] = v[k].x;
    to[k * (kThreads / 2) + a.plane] = v[k].y;
    to[k * (kThreads / 2) + 2 * a.plane] = v[k].z;
    to[k * (kThreads / 2) + 3 * a.plane] = v[k].w;
  }
}

// The bands of a pair of channels as a lane holds them, which wait in shared memory between tiles.
struct Bands {
  uint2* smem;

  __device__ __forceinline__ Bands(unsigned* words) : smem(reinterpret_cast<uint2*>(words) + threadIdx.x) {}
  __device__ __forceinline__ uint2& at(int c, int r) const { return smem[(c * kSide + r) * kThreads]; }

  __device__ __forceinline__ void build(const Problem& a, int channel) const {
    const int lane = threadIdx.x % kWarp, n = lane / 4, k = lane % 4 * 2;
#pragma unroll 1
    for (int i = 0; i < 2 * kSide; ++i) {
      const int c = i / kSide, r = i - c * kSide;
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int s = k + j / 2 * 8 + j % 2 - n;
        w[j] = s >= 0 && s < kSide && channel + c < a.channels ? a.weight(channel + c, r, s) : 0.0f;
      }
      at(c, r) = uint2{narrow_pair(w[0], w[1], T()), narrow_pair(w[2], w[3], T())};
    }
  }
  __device__ __forceinline__ void read(unsigned (&band)[kSide][2], int c) const {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      const uint2 words = at(c, r);
      band[r][0] = words.x;
      band[r][1] = words.y;
    }
  }
};

// Where a lane's two rows of A begin in a plane, -1 where there is none.
struct Spots {
  int at[2];

  __device__ __forceinline__ explicit Spots(const Problem& a) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = lane / 4 + half * 8, group = m / a.across;
      at[half] = group < a.groups ? group * kGroup * a.pitch + (m - group * a.across) * kStrip + lane % 4 * 2 : -1;
    }
  }
};

__device__ __forceinline__ unsigned halves(const uint2& words, int channel) {
  return __byte_perm(words.x, words.y, channel ? 0x7632 : 0x5410);
}

// One channel of the pair after the other: both at once would need more registers than two blocks have.
__device__ __forceinline__ void compute(float (&sum)[kGroup][2][4], const unsigned* plane, const Spots& spots, int pitch, const Bands& bands) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    unsigned band[kSide][2];
    bands.read(band, c);
    const unsigned *low = plane + max(spots.at[0], 0), *high = plane + max(spots.at[1], 0);
#pragma unroll
    for (int i = 0; i < kGroup + kSide - 1; ++i) {
      const auto rows_at = [&](const unsigned* p) { return halves(*reinterpret_cast<const uint2*>(p), c); };
      const unsigned rows[4] = {rows_at(low), rows_at(high), rows_at(low + kStrip), rows_at(high + kStrip)};
#pragma unroll
      for (int p = 0; p < kGroup; ++p) {
        if (i - p >= 0 && i - p < kSide) multiply_16x8x16(sum[p][c], rows, band[i - p], T());
      }
      low += pitch;
      high += pitch;
    }
  }
}

__device__ __forceinline__ void begin_sums(float (&sum)[kGroup][2][4], const T* bias, int channel) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float start = bias ? widen(bias[channel + c]) : 0.0f;
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[p][c][i] = start;
    }
  }
}

__device__ __forceinline__ float finished(float sum) { return Config::kRelu && sum < 0.0f ? 0.0f : sum; }

// Writes the results of a pair over its plane and says whether one of them is not finite.
__device__ __forceinline__ bool put(unsigned* plane, const float (&sum)[kGroup][2][4], const Spots& spots, int pitch) {
  float none = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (spots.at[half] < 0) continue;
    unsigned* to = plane + spots.at[half];
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
      uint2 words;
      words.x = narrow_pair(finished(sum[p][0][2 * half]), finished(sum[p][1][2 * half]), T());
      words.y = narrow_pair(finished(sum[p][0][2 * half + 1]), finished(sum[p][1][2 * half + 1]), T());
      *reinterpret_cast<uint2*>(to + p * pitch) = words;
#pragma unroll
      for (int c = 0; c < 2; ++c) none += 0.0f * sum[p][c][2 * half] + 0.0f * sum[p][c][2 * half + 1];
    }
  }
  return none != none;
}

// One output by the definition.
__device__ __forceinline__ float by_definition(const Problem& a, long long n, int p, int q, int channel) {
  float sum = a.bias ? widen(a.bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    const int r = tap / kSide, s = tap - r * kSide, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
    if (at_h < 0 || at_h >= a.height || at_w < 0 || at_w >= a.width) continue;
    sum += widen(a.x[n * a.x_n + at_h * a.x_h + at_w * a.x_w + channel]) * a.weight(channel, r, s);
  }
  return finished(sum);
}

// Computes again what is NaN in the planes, by the definition.
__device__ __forceinline__ void repair(unsigned* smem, const Problem& a, const Tile& tile) {
  const int columns = a.across * kStrip;
#pragma unroll 1
  for (int i = threadIdx.x; i < a.groups * kGroup * columns * 2 * kPairs; i += kThreads) {
    const int pixel = i / (2 * kPairs), row = pixel / columns, column = pixel - row * columns, own = i % (2 * kPairs);
    if (tile.first + own >= a.channels || tile.p + row >= a.out_height || tile.q + column >= a.out_width) continue;
    T& result = reinterpret_cast<T*>(smem)[(own / 2 * a.plane + row * a.pitch + column) * 2 + own % 2];
    if (widen(result) != widen(result)) {
      result = narrow<T>(by_definition(a, tile.n, tile.p + row, tile.q + column, tile.first + own));
    }
  }
}

// Stores a tile from its planes, 8 channels of a pixel at once.
__device__ __forceinline__ void store_tile(const unsigned* smem, const Problem& a, const Tile& tile) {
  const int lane = threadIdx.x % kWarp, part = lane % 2, channel = tile.first + part * 8;
  const int rows = min(a.groups * kGroup, a.out_height - tile.p), columns = min(a.across * kStrip, a.out_width - tile.q);
  if (channel >= a.channels) return;
  for (int row = threadIdx.x / kWarp; row < rows; row += kWarps) {
    T* to = a.y + tile.n * a.y_n + (tile.p + row) * a.y_h + (tile.q + lane / 2) * a.y_w + channel;
    const unsigned* from = smem + part * 4 * a.plane + row * a.pitch;
#pragma unroll 1
    for (int column = lane / 2; column < columns; column += kWarp / 2) {
      unsigned words[4];
      Vec<T, 8> pixel;
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = from[i * a.plane + column];
      memcpy(&pixel, words, sizeof pixel);
      store(to, pixel);
      to += kWarp / 2 * a.y_w;
    }
  }
}

struct Steps {
  int first_tile, tiles, step, first_channel;

  __device__ __forceinline__ Tile at(const Problem& a, int tile) const {
    const Quotient by_w = divide(tile, a.tiles_w), by_h = divide(by_w.quotient, a.tiles_h);
    return {by_h.quotient, by_h.rest * a.groups * kGroup, by_w.rest * a.across * kStrip, first_channel};
  }
};

__device__ __forceinline__ void run(const Problem& a, const Steps& steps) {
  __shared__ int smem_suspect[kWarps];
  const int warp = threadIdx.x / kWarp, channel = steps.first_channel + 2 * warp;
  const Bands bands(smem_words + kPairs * a.plane);
  bands.build(a, channel);
  for (int tile = steps.first_tile; tile < steps.tiles; tile += steps.step) {
    bring_tile(smem_words, a, steps.at(a, tile));
    __syncthreads();
    if (tile + steps.step < steps.tiles) {
      each_share(a, steps.at(a, tile + steps.step), [](int, const T* from, bool there) { prefetch_if(from, there); });
    }
    unsigned* plane = smem_words + warp * a.plane;
    const Spots spots(a);
    float sum[kGroup][2][4];
    begin_sums(sum, channel < a.channels ? a.bias : nullptr, channel);
    compute(sum, plane, spots, a.pitch, bands);
    __syncwarp();
    const bool strange = __any_sync(kAllLanes, put(plane, sum, spots, a.pitch));
    if (threadIdx.x % kWarp == 0) smem_suspect[warp] = strange;
    __syncthreads();
    int suspect = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) suspect |= smem_suspect[i];
    if (suspect) {
      repair(smem_words, a, steps.at(a, tile));
      __syncthreads();
    }
    store_tile(smem_words, a, steps.at(a, tile));
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) DNNARRAY_ENTRY(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, long long batch, long long channels,
    long long flip, long long across, long long groups, long long x_n, long long x_h, long long x_w, long long y_n, long long y_h,
    long long y_w, long long height, long long width, long long out_height, long long out_width, long long before_h, long long before_w,
    long long pitch, long long plane) {
  __shared__ Problem problem;
  const auto i = [](long long value) { return static_cast<int>(value); };
  const int tiles_w = (i(out_width) - 1) / (i(across) * kStrip) + 1, tiles_h = (i(out_height) - 1) / (i(groups) * kGroup) + 1;
  if (threadIdx.x == 0) {
    problem = Problem{x,           w,           bias,           y,           x_n,          x_h,          x_w,
                      y_n,         y_h,         y_w,            i(channels), i(height),    i(width),     i(out_height),
                      i(out_width), i(before_h), i(before_w),   i(across),   i(groups),    i(pitch),     i(plane),
                      i(groups) * kGroup + kSide - 1, tiles_w, tiles_h, flip != 0};
  }
  __syncthreads();
  const int chunks = (i(channels) - 1) / (2 * kPairs) + 1;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  run(problem, {by_chunk.quotient, i(batch) * tiles_h * tiles_w, static_cast<int>(gridDim.x) / chunks, by_chunk.rest * 2 * kPairs});
}
