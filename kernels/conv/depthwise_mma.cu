// Depthwise convolution of half types on the tensor cores: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s - before] *
// w[c, r, s] + bias[c]). For each channel, row r of the window is a banded matrix B_r[k][q] = w[r, k - q] of 16 inputs and 8 outputs: a row
// of inputs times B_r is what it adds to 8 outputs r rows above. Products are exact and sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block of 8 warps owns 16 channels of a tile of outputs: `across` strips of 8 columns
//          times `groups` groups of kGroup rows, at most 16 of both together: those are the rows of the matrix A. Inputs stand in shared
//          memory as a plane for each pair of channels; a warp owns a pair, takes every input row once and keeps the kGroup rows of
//          results in registers, then writes them over its plane, from where the block stores whole pixels. Two buffers: the next
//          tile comes while this one is computed.
// Needs:   pointers aligned to 16 bytes, channels a multiple of 8; a square window of kSide; strides and dilations of 1.
// Bound:   memory: x and y once.
// Zeros of a band times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/depthwise.cuh"
#include "dnnarray/reduce.cuh"
#include "dnnarray/tensor_core.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 3;
  static constexpr int kGroup = 8;
};
#define DNNARRAY_ENTRY conv_depthwise_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kGroup = Config::kGroup, kPairs = 8, kWarps = 8, kThreads = kWarps * kWarp, kStrip = 8;

extern __shared__ unsigned smem_words[];

// Extents and distances that all threads share. Words hold a pair of channels.
struct Problem {
  const T *x, *w, *bias;
  T* y;
  long long x_n, x_h, x_w, y_n, y_h, y_w;
  int channels, height, width, out_height, out_width, before_h, before_w, across, groups, pitch, plane, rows;
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

__device__ __forceinline__ void bring_word(unsigned* smem, const void* gmem, bool there) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(gmem), "r"(there ? 4 : 0) : "memory");
}

// The tile's inputs, zeros outside of the image and behind the last column that an output reads.
__device__ __forceinline__ void bring_tile(unsigned* smem, const Problem& a, const Tile& tile) {
  constexpr int kStep = kWarp / kPairs;
  const int lane = threadIdx.x % kWarp, pair = lane % kPairs, start = lane / kPairs, channel = tile.first + 2 * pair;
  const int left = tile.q - a.before_w, end = min(a.width - left, a.across * kStrip + kSide - 1);
  for (int row = threadIdx.x / kWarp; row < a.rows; row += kWarps) {
    const int at_h = tile.p - a.before_h + row;
    const bool row_there = channel < a.channels && at_h >= 0 && at_h < a.height;
    const T* from = a.x + tile.n * a.x_n + at_h * a.x_h + (left + start) * a.x_w + channel;
    unsigned* to = smem + pair * a.plane + row * a.pitch + start;
#pragma unroll 4
    for (int column = start; column < a.pitch; column += kStep) {
      const bool there = row_there && column + left >= 0 && column < end;
      bring_word(to, there ? from : a.x, there);
      from += kStep * a.x_w;
      to += kStep;
    }
  }
}

// The bands of a pair of channels, as a lane holds them.
__device__ __forceinline__ void load_bands(unsigned (&band)[2][kSide][2], const Problem& a, int channel) {
  const int lane = threadIdx.x % kWarp, n = lane / 4, k = lane % 4 * 2;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float w[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int s = k + half * 8 + i - n;
          w[i] = s >= 0 && s < kSide && channel + c < a.channels ? a.weight(channel + c, r, s) : 0.0f;
        }
        band[c][r][half] = narrow_pair(w[0], w[1], T());
      }
    }
  }
}

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

__device__ __forceinline__ void compute(float (&sum)[kGroup][2][4], const unsigned* plane, const Spots& spots, int pitch,
                                        const unsigned (&band)[2][kSide][2]) {
  const unsigned *low = plane + max(spots.at[0], 0), *high = plane + max(spots.at[1], 0);
#pragma unroll
  for (int i = 0; i < kGroup + kSide - 1; ++i) {
    uint2 words[4];
    words[0] = *reinterpret_cast<const uint2*>(low);
    words[1] = *reinterpret_cast<const uint2*>(high);
    words[2] = *reinterpret_cast<const uint2*>(low + 8);
    words[3] = *reinterpret_cast<const uint2*>(high + 8);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const unsigned rows[4] = {halves(words[0], c), halves(words[1], c), halves(words[2], c), halves(words[3], c)};
#pragma unroll
      for (int p = 0; p < kGroup; ++p) {
        if (i - p >= 0 && i - p < kSide) multiply_16x8x16(sum[p][c], rows, band[c][i - p], T());
      }
    }
    low += pitch;
    high += pitch;
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
  float sum = Config::kAdded ? widen(a.bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    const int r = tap / kSide, s = tap - r * kSide, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
    if (at_h < 0 || at_h >= a.height || at_w < 0 || at_w >= a.width) continue;
    sum += widen(a.x[n * a.x_n + at_h * a.x_h + at_w * a.x_w + channel]) * a.weight(channel, r, s);
  }
  return finished(sum);
}

// Stores a tile from its planes, 8 channels of a pixel at once.
__device__ __forceinline__ void store_tile(const unsigned* smem, const Problem& a, const Tile& tile, bool suspect) {
  const int lane = threadIdx.x % kWarp, part = lane % 2, channel = tile.first + part * 8;
  const int rows = min(a.groups * kGroup, a.out_height - tile.p), columns = min(a.across * kStrip, a.out_width - tile.q);
  if (channel >= a.channels) return;
  for (int row = threadIdx.x / kWarp; row < rows; row += kWarps) {
    T* to = a.y + tile.n * a.y_n + (tile.p + row) * a.y_h + (tile.q + lane / 2) * a.y_w + channel;
    const unsigned* from = smem + part * 4 * a.plane + row * a.pitch;
#pragma unroll 2
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
  if (!suspect) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * columns * 2 * kPairs; i += kThreads) {
    const int pixel = i / (2 * kPairs), row = tile.p + pixel / columns, column = tile.q + pixel % columns;
    const int own = tile.first + i % (2 * kPairs);
    if (own >= a.channels) continue;
    const T stored = reinterpret_cast<const T*>(smem)[((own - tile.first) / 2 * a.plane + pixel / columns * a.pitch + pixel % columns) * 2 + own % 2];
    if (widen(stored) == widen(stored)) continue;
    a.y[tile.n * a.y_n + row * a.y_h + column * a.y_w + own] = narrow<T>(by_definition(a, tile.n, row, column, own));
  }
}

__device__ __forceinline__ void run(const Problem& a, long long batch, int buffer) {
  __shared__ int smem_suspect[kWarps];
  const int warp = threadIdx.x / kWarp, wide = a.across * kStrip, high = a.groups * kGroup;
  const int chunks = (a.channels + 2 * kPairs - 1) / (2 * kPairs);
  const int tiles_w = (a.out_width + wide - 1) / wide, tiles_h = (a.out_height + high - 1) / high;
  const Split by_chunk = split(blockIdx.x, chunks);
  const long long tiles = batch * tiles_h * tiles_w, step = gridDim.x / chunks;
  const int first = by_chunk.rest * 2 * kPairs, channel = first + 2 * warp;
  const Spots spots(a);
  unsigned band[2][kSide][2];
  load_bands(band, a, channel);
  float start[2] = {};
  if (Config::kAdded && channel < a.channels) start[0] = widen(a.bias[channel]), start[1] = widen(a.bias[channel + 1]);

  const auto at = [&](long long tile) {
    const Split by_w = split(tile, tiles_w), by_h = split(by_w.quotient, tiles_h);
    return Tile{by_h.quotient, by_h.rest * high, by_w.rest * wide, first};
  };
  unsigned* smem = smem_words;
  if (by_chunk.quotient < tiles) bring_tile(smem, a, at(by_chunk.quotient));
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (long long tile = by_chunk.quotient; tile < tiles; tile += step) {
    unsigned* other = smem == smem_words ? smem_words + buffer : smem_words;
    if (tile + step < tiles) bring_tile(other, a, at(tile + step));
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    float sum[kGroup][2][4];
#pragma unroll
    for (int p = 0; p < kGroup; ++p) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[p][i / 4][i % 4] = start[i / 4];
    }
    compute(sum, smem + warp * a.plane, spots, a.pitch, band);
    __syncwarp();
    const bool strange = __any_sync(kAllLanes, put(smem + warp * a.plane, sum, spots, a.pitch));
    if (threadIdx.x % kWarp == 0) smem_suspect[warp] = strange;
    __syncthreads();
    int suspect = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) suspect |= smem_suspect[i];
    store_tile(smem, a, at(tile), suspect != 0);
    __syncthreads();
    smem = other;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 2) DNNARRAY_ENTRY(
    const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, long long batch, long long channels,
    long long flip, long long across, long long groups, long long x_n, long long x_h, long long x_w, long long y_n, long long y_h,
    long long y_w, long long height, long long width, long long out_height, long long out_width, long long before_h, long long before_w,
    long long pitch, long long plane) {
  const auto i = [](long long value) { return static_cast<int>(value); };
  const Problem a{x,           w,           bias,           y,           x_n,          x_h,          x_w,
                  y_n,         y_h,         y_w,            i(channels), i(height),    i(width),     i(out_height),
                  i(out_width), i(before_h), i(before_w),   i(across),   i(groups),    i(pitch),     i(plane),
                  i(groups) * kGroup + kSide - 1, flip != 0};
  run(a, batch, kPairs * a.plane);
}
