// Float32 images as parts of half types (parts.cuh), channels-last: part p of pixel i and channel c lies at p * plane +
// i * width + c, zeros from `channels` on.
//
// Layout:  kLast: x is pixels x channels, a thread does 8 channels of a pixel. Otherwise x is batch x channels x
//          pixels, and a block turns tiles of 64 channels x 64 pixels in shared memory. A grid walks over all of it
//          from its end, which whoever read x before has left in the second-level cache, to its beginning, where the
//          products start. kScale: how the power of two is found, which the first block writes down. kNone: there is
//          none. kFound: every block puts together what parts_range.cu has found. kGuessed: every block looks at some
//          of the numbers, leaves room for larger ones and writes down what it has found in its share of x. kChecked
//          comes behind that: where the guess holds, nothing is left to do; otherwise x is done again as by kFound.
//          `guess` is the scale that was guessed.
// Needs:   `width` a multiple of 8; kVector (4 or 1) divides channels and, of channels-first images, pixels, and x is
//          aligned to it.
// Bound:   memory: x read once, the parts written once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "conv/parts.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr int kParts = 2;
  static constexpr int kScale = 1;
  static constexpr bool kLast = true;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY parts_image_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kParts = Config::kParts, kVector = Config::kVector, kThreads = Config::kThreads, kChunk = 8, kTile = 64,
              kPitch = kTile + 1;

enum { kNone, kFound, kGuessed, kChecked };
constexpr int kScale = Config::kScale;

struct Arguments {
  const float* x;
  T* parts;
  long long batch, channels, pixels, width, plane;
};

// Numbers of a sample: 8 neighbours for each thread, at places that do not repeat with the channels; n is 2^20 at
// least.
__device__ __forceinline__ unsigned sampled(const float* x, long long n) {
  const long long at = (n / kChunk / kThreads + 1) * threadIdx.x * kChunk;
  unsigned largest = 0;
#pragma unroll
  for (int e = 0; e < kChunk; ++e) largest = merged(largest, seen(x[at + e]) & ~kStrange);
  return largest;
}

// What is not finite becomes NaN, which no product hides.
__device__ __forceinline__ void mark(unsigned (&words)[kParts][kChunk / 2], const float (&v)[kChunk]) {
#pragma unroll
  for (int e = 0; e < kChunk; ++e) {
    if (seen(v[e]) != kStrange) continue;
    const unsigned mask = 0xffffu << e % 2 * 16;
#pragma unroll
    for (int p = 0; p < kParts; ++p) words[p][e / 2] = (words[p][e / 2] & ~mask) | (p == 0 ? 0x7fff7fffu & mask : 0);
  }
}

// `largest` is what this thread has seen so far.
__device__ __forceinline__ void write_chunk(const Arguments& a, const float (&v)[kChunk], float down, long long to,
                                            unsigned& largest) {
  unsigned words[kParts][kChunk / 2];
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    unsigned pair[kParts];
    Parts<T, kParts>::of(v[2 * i] * down, v[2 * i + 1] * down, pair);
#pragma unroll
    for (int p = 0; p < kParts; ++p) words[p][i] = pair[p];
  }
  if constexpr (kScale != kNone) {
    float most = 0;
#pragma unroll
    for (int e = 0; e < kChunk; ++e) most = max_nan_abs(most, v[e]);
    if (seen(most) == kStrange) {
      mark(words, v);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) largest = merged(largest, seen(v[e]));
    } else {
      largest = merged(largest, seen(most));
    }
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const Vec<unsigned, 4> chunk = {{words[p][0], words[p][1], words[p][2], words[p][3]}};
    store(reinterpret_cast<unsigned*>(a.parts + p * a.plane + to), chunk);
  }
}

__device__ __forceinline__ void from_last(const Arguments& a, float down, unsigned& largest) {
  const long long chunks = a.width / kChunk, total = a.batch * a.pixels * chunks;
  for (long long later = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; later < total;
       later += static_cast<long long>(gridDim.x) * kThreads) {
    const long long i = total - 1 - later;
    const bool whole = a.width == a.channels;
    const Split at = whole ? Split{0, 0} : split(i, static_cast<int>(chunks));
    const float* from = a.x + (whole ? i * kChunk : at.quotient * a.channels + at.rest * kChunk);
    const long long left = whole ? kChunk : a.channels - at.rest * kChunk;
    float v[kChunk];
#pragma unroll
    for (int e = 0; e < kChunk; e += kVector) {
      Vec<float, kVector> found = {};
      if (e < left) found = load<float, kVector>(from + e);
#pragma unroll
      for (int j = 0; j < kVector; ++j) v[e + j] = found.at[j];
    }
    write_chunk(a, v, down, i * kChunk, largest);
  }
}

__device__ __forceinline__ void from_first(const Arguments& a, float down, float (&tile)[kTile][kPitch],
                                           unsigned& largest) {
  const int tiles_c = static_cast<int>((a.width + kTile - 1) / kTile),
            tiles_p = static_cast<int>((a.pixels + kTile - 1) / kTile);
  const long long tiles = a.batch * tiles_c * tiles_p;
  for (long long later = blockIdx.x; later < tiles; later += gridDim.x) {
    const long long i = tiles - 1 - later;
    const Split by_p = split(i, tiles_p), by_c = split(by_p.quotient, tiles_c);
    const long long first_p = static_cast<long long>(by_p.rest) * kTile,
                    first_c = static_cast<long long>(by_c.rest) * kTile;
    const float* from = a.x + (by_c.quotient * a.channels + first_c) * a.pixels + first_p;
    for (int t = threadIdx.x; t < kTile * kTile / kVector; t += kThreads) {
      const int c = t / (kTile / kVector), p = t % (kTile / kVector) * kVector;
      Vec<float, kVector> v = {};
      if (first_c + c < a.channels && first_p + p < a.pixels) v = load<float, kVector>(from + c * a.pixels + p);
#pragma unroll
      for (int e = 0; e < kVector; ++e) tile[c][p + e] = v.at[e];
    }
    __syncthreads();
    for (int t = threadIdx.x; t < kTile * kTile / kChunk; t += kThreads) {
      const int p = t / (kTile / kChunk), c = t % (kTile / kChunk) * kChunk;
      if (first_p + p >= a.pixels || first_c + c >= a.width) continue;
      float v[kChunk];
#pragma unroll
      for (int e = 0; e < kChunk; ++e) v[e] = tile[c + e][p];
      write_chunk(a, v, down, (by_c.quotient * a.pixels + first_p + p) * a.width + first_c + c, largest);
    }
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, unsigned* __restrict__ found, long long count,
                   Scale* __restrict__ scale, Scale* __restrict__ guess, T* __restrict__ parts, long long batch,
                   long long channels, long long pixels, long long width, long long plane) {
  let_next_kernel_begin();
  x = after_previous_kernel(x);
  __shared__ unsigned smem_found[kThreads / kWarp];
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  float down = 1;
  unsigned largest = 0;
  if constexpr (kScale != kNone) {
    if constexpr (kScale == kGuessed) {
      largest = sampled(x, batch * channels * pixels);
    } else {
      for (int i = threadIdx.x; i < count; i += kThreads) largest = merged(largest, found[i]);
    }
    largest = block_reduce<kThreads>(largest, Merge(), smem_found);
    Scale whole = Scale::of(largest);
    if (kScale == kGuessed) whole.exponent += kSpare;
    const bool holds = kScale == kChecked && guess->holds(largest);
    if (holds) whole.exponent = guess->exponent;
    if (first) *(kScale == kGuessed ? guess : scale) = whole;
    if (holds) return;
    down = whole.down();
    largest = 0;
  }
  const Arguments a = {x, parts, batch, channels, pixels, width, plane};
  if constexpr (Config::kLast) {
    from_last(a, down, largest);
  } else {
    __shared__ float smem_tile[kTile][kPitch];
    from_first(a, down, smem_tile, largest);
  }
  if constexpr (kScale == kGuessed) {
    largest = block_reduce<kThreads>(largest, Merge(), smem_found);
    if (threadIdx.x == 0) found[blockIdx.x] = largest;
  }
}
