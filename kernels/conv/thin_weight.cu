// The weight gradient of an input of few channels: partial sums of dw[k, r, s, c] = sum over n, p and q of dy[n, p, q,
// k] * x[n, p * stride + r * dilation - before, q * stride + s - before, c], as products whose sum runs over pixels.
// Float32 numbers are multiplied as parts (small_channels.cuh); their scales are those of all regions of a block so
// far.
//
// Layout:  x and dy channels-last in memory, dense; partial (splits, K, R S C) float32, which split_sums.cu adds up in
//          a fixed order. A block takes regions of kSide x kSide pixels of dy and 64 of its channels, every
//          gridDim.x-th: both dy and the pixels of x that they meet come to shared memory. Columns are (r; s and c
//          filled up to kColumns), 8 of them a matrix; a warp has every kWarps-th matrix, kMatrices at most, of all 64
//          channels.
// Needs:   sm_80; K a multiple of 8, pointers aligned to 16 bytes; a dilation of 1 along the last axis, no third one.
// Bound:   the tensor cores. Sums in float32.

#include "conv/small_channels.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Part = dnnarray::bfloat16_t;
  static constexpr int kParts = 1;
  static constexpr bool kScaled = false;
  static constexpr int kColumns = 24;
  static constexpr int kMatrices = 3;
  static constexpr int kThreads = 256;
};
struct Arguments {
  int regions;
  int channels;
  int outs;
  int regions_h;
  int regions_w;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_thin_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
using P = Config::Part;
using Numbers = ThinNumbers<T, P, Config::kParts, Config::kScaled>;
constexpr int kParts = Config::kParts, kUnrolled = kParts == 2 ? 1 : 2,
              kPieces = sizeof(T) / 2;  // of 16 bytes, for 8 neighbours
constexpr int kThreads = Config::kThreads, kWarps = kThreads / 32, kSide = 16, kChannels = 64,
              kChunks = Config::kColumns / 8, kMatrices = Config::kMatrices;
#if __CUDA_ARCH__ >= 900 && \
    __CUDA_ARCH__ <         \
        1000  // older multiprocessors do not hold float32 regions of two blocks; for later ones the compiler spills
constexpr int kBlocks = kThreads == 256 || kMatrices <= 2 ? 2 : 1;
#else
constexpr int kBlocks = kThreads == 256 ? 2 : 1;
#endif
constexpr int kPitch = kChannels * static_cast<int>(sizeof(T)) + 16;  // bytes of a pixel of dy in shared memory

extern __shared__ __align__(16) char smem_memory[];

struct Problem {
  const T* dy;
  float* partial;
  ConvAxes axes;
  ThinPixels<T, kSide, Config::kColumns> pixels;
  int outs, first;  // channels of dy, the first of this block
};

// The region's part of dy, zeros outside of the image: a thread brings all pieces of its chunks of 8 channels.
__device__ __forceinline__ void load_gradient(const Problem& a, const ThinRegion& region) {
#pragma unroll kUnrolled
  for (int i = fresh_thread(); i < kSide * kSide * (kChannels / 8); i += kThreads) {
    const int chunk = i % (kChannels / 8), pixel = i / (kChannels / 8), p = region.p + pixel / kSide,
              q = region.q + pixel % kSide;
    const bool there = p < a.axes.h.out && q < a.axes.w.out && a.first + chunk * 8 < a.outs;
    const long long at =
        ((static_cast<long long>(region.image) * a.axes.h.out + p) * a.axes.w.out + q) * a.outs + a.first + chunk * 8;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      cp_async_cg(shared_address(smem_memory + pixel * kPitch + chunk * Numbers::kChunk + piece * 16),
                  a.dy + (there ? at + piece * 4 : 0), there);
  }
  cp_async_commit_group();
}

// What each thread does with the chunks that it has brought.
template <typename Visit>
__device__ __forceinline__ void each_chunk(Visit visit) {
#pragma unroll kUnrolled
  for (int i = fresh_thread(); i < kSide * kSide * (kChannels / 8); i += kThreads)
    visit(smem_memory + i / (kChannels / 8) * kPitch + i % (kChannels / 8) * Numbers::kChunk);
}

// One element of two pixels; each of their parts side by side.
__device__ __forceinline__ void pair_of(const char* first, const char* second, unsigned (&parts)[kParts][2],
                                        int which) {
  if constexpr (Numbers::kFloat) {
    const unsigned low = *reinterpret_cast<const unsigned*>(first), high = *reinterpret_cast<const unsigned*>(second);
#pragma unroll
    for (int p = 0; p < kParts; ++p) parts[p][which] = __byte_perm(low, high, p == 0 ? 0x5410 : 0x7632);
  } else {
    parts[0][which] = *reinterpret_cast<const unsigned short*>(first) |
                      static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(second)) << 16;
  }
}

template <bool kStrange>
__device__ __forceinline__ void multiply(const Problem& a, const char* pixels,
                                         float (&sums)[kMatrices][kChannels / 16][4]) {
  const int own = fresh_thread(), lane = own % 32, warp = own / 32, step = a.pixels.step(),
            matrices = a.axes.h.window * kChunks;
  const unsigned gradient =
      shared_address(smem_memory) + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * Numbers::kChunk;
  const char* from[kMatrices];
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    const int matrix = min(warp + j * kWarps, matrices - 1), column = matrix % kChunks * 8 + lane / 4;
    from[j] =
        pixels + matrix / kChunks * a.pixels.tap_row() + column * static_cast<int>(sizeof(T)) + lane % 4 * 2 * step;
  }
#pragma unroll kUnrolled
  for (int p = 0; p < kSide; ++p) {
    unsigned right[kMatrices][kParts][2];
#pragma unroll
    for (int j = 0; j < kMatrices; ++j) {
      pair_of(from[j], from[j] + step, right[j], 0);
      pair_of(from[j] + 8 * step, from[j] + 9 * step, right[j], 1);
      from[j] += a.pixels.down();
    }
#pragma unroll
    for (int i = 0; i < kChannels / 16; ++i) {
      unsigned left[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ldmatrix_x4_trans(gradient + p * kSide * kPitch + i * 2 * Numbers::kChunk + part * 16, left[part]);
#pragma unroll
      for (int j = 0; j < kMatrices; ++j) Numbers::template add<kStrange>(sums[j][i], left, right[j]);
    }
  }
}

// What the sums of a block are of: numbers that are 2^exponent times those of the parts.
struct Scales {
  int dy, x;
};
__device__ __forceinline__ void scale_all(float (&sums)[kMatrices][kChannels / 16][4], const Factors& factors) {
#pragma unroll
  for (int j = 0; j < kMatrices; ++j)
#pragma unroll
    for (int i = 0; i < kChannels / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][i][e] = factors(sums[j][i][e]);
}

// What a region adds to the sums: their scales from there on, and whether there are NaN or infinities.
struct Added {
  Scales scales;
  bool strange;
};

// Parts of the region's numbers, the sums being brought to their scales where these are larger than those of `before`.
template <typename N>
__device__ __forceinline__ Added into_parts(const Problem& a, char* pixels, const Scales& before,
                                            float (&sums)[kMatrices][kChannels / 16][4]) {
  const auto raised = [](Scale found, int exponent) { return Scale{max(exponent, found.exponent), found.strange}; };
  const Scale of_x =
      a.pixels.template into_parts<kThreads, N>(pixels, [&](Scale found) { return raised(found, before.x); });
  unsigned largest = 0;
  if constexpr (Config::kScaled) each_chunk([&](const char* at) { largest = merged(largest, N::seen_in(at)); });
  const Scale of_dy = raised(N::template scale<kThreads>(largest), before.dy);
  each_chunk([&](char* at) { N::chunk(at, of_dy.down()); });
  const int less = before.dy + before.x - of_dy.exponent - of_x.exponent;
  if (Config::kScaled && less < 0) scale_all(sums, Factors(max(less, -126)));
  return {{of_dy.exponent, of_x.exponent}, of_x.strange || of_dy.strange};
}

__device__ __forceinline__ void write(const Problem& a, const float (&sums)[kMatrices][kChannels / 16][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = a.axes.w.window * a.pixels.channels,
            all = a.axes.h.window * row;
#pragma unroll
  for (int j = 0; j < kMatrices; ++j) {
    const int matrix = warp + j * kWarps, r = matrix / kChunks, column = matrix % kChunks * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kChannels / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = a.first + i * 16 + lane / 4 + e / 2 * 8, place = column + e % 2;
        if (r >= a.axes.h.window || k >= a.outs || place >= row) continue;
        a.partial[(static_cast<long long>(blockIdx.x) * a.outs + k) * all + r * row + place] = sums[j][i][e];
      }
  }
}

// `channels` and `outs` of x and dy; a split for each of gridDim.x.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const Problem problem = {
      dy, partial, a.axes, {x, a.axes, a.channels}, a.outs, static_cast<int>(blockIdx.y) * kChannels};
  char* const pixels = smem_memory + kSide * kSide * kPitch;
  __shared__ Scales smem_scales;  // of what is in the sums
  __shared__ int smem_next;       // region; both stand here since the registers are for the sums
  if (threadIdx.x == 0) smem_scales = Config::kScaled ? Scales{-126, -126} : Scales{0, 0}, smem_next = blockIdx.x;
  float sums[kMatrices][kChannels / 16][4] = {};
  for (;;) {
    __syncthreads();
    const int i = smem_next;
    if (i >= a.regions) break;
    const ThinRegion region = ThinRegion::of(i, a.regions_h, a.regions_w, kSide);
    load_gradient(problem, region);
    if constexpr (Numbers::kFloat) problem.pixels.bring<kThreads>(pixels, region);
    Added added = {};
    if constexpr (Numbers::kFloat) {
      added = into_parts<Numbers>(problem, pixels, smem_scales, sums);
    } else {
      problem.pixels.load<kThreads>(pixels, region);
      cp_async_wait_group<0>();
    }
    __syncthreads();
    if (threadIdx.x == 0) smem_scales = added.scales, smem_next = i + gridDim.x;
    if (kParts == 2 && added.strange) {
      multiply<true>(problem, pixels, sums);
    } else {
      multiply<false>(problem, pixels, sums);
    }
  }
  if constexpr (Config::kScaled) scale_all(sums, Factors(smem_scales.dy + smem_scales.x));
  write(problem, sums);
}
