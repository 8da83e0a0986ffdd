// Convolution of an input of few channels, such as the images of a first layer: y[n, p, q, k] = f(sum over r, s and c
// of x[n, p * stride + r * dilation - before, q * stride + s - before, c] * weight[k, c, r, s] + bias[k] + residual[n,
// p, q, k]). The channels of neighbouring pixels lie together, so a row of the window is S * C neighbours in memory,
// filled up to kColumns, and pixel q begins stride * C further than pixel q - 1: the left operand of the products is
// read from the pixels as they stand in shared memory, float32 ones as parts (small_channels.cuh).
//
// Layout:  x and y channels-last in memory, x dense, y by steps; the weight by steps, which may be negative. A block
//          takes regions of kSide x kSide pixels of y and 64 of its channels, one after another: the pixels of x that a
//          region meets come to shared memory (float32 ones a region ahead), the weight (part; k; r, s and c) stands
//          there once for all regions. A warp multiplies two rows of 16 pixels by 64 channels. The residual lies as y.
// Needs:   sm_80; K a multiple of 8, pointers aligned to 16 bytes; a dilation of 1 along the last axis, no third one.
// Bound:   memory, or the tensor cores. Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
#include "conv/small_channels.cuh"
#include "conv/epilogue.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Part = dnnarray::bfloat16_t;
  static constexpr int kParts = 1;
  static constexpr bool kScaled = false;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kColumns = 24;
  static constexpr bool kEven = true;
};
struct Arguments {
  int regions;
  int channels;
  int outs;
  int regions_h;
  int regions_w;
  dnnarray::Strides w_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_thin_forward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using P = Config::Part;
using R = Config::Result;
using Numbers = ThinNumbers<T, P, Config::kParts, Config::kScaled>;
constexpr int kThreads = 256, kSide = 16, kChannels = 64, kChunks = Config::kColumns / 8, kParts = Config::kParts;
// Channels whose sums stand in registers at a time, beside what else must.
constexpr int kTogether = kParts == 2 || (Config::kScaled && __CUDA_ARCH__ >= 1000) ? 32 : 64;

extern __shared__ __align__(16) char smem_memory[];

struct Problem {
  const T* weight;
  Target<T, R> target;
  ConvAxes axes;
  long long steps_k, steps_c, steps_r, steps_s;  // of the weight
  ThinPixels<T, kSide, Config::kColumns> pixels;

  __device__ __forceinline__ int blocks() const { return (axes.h.window * kChunks + 1) / 2; }  // of 16 along the sum
  __device__ __forceinline__ int weight_pitch() const { return blocks() * 32 + 16; }  // bytes of a row in shared memory
  __device__ __forceinline__ int weight_part() const { return kChannels * weight_pitch(); }  // of a part
};

struct Shared {
  char *weight, *pixels;

  __device__ __forceinline__ explicit Shared(const Problem& a)
      : weight(smem_memory), pixels(smem_memory + kParts * a.weight_part()) {}
};

// What `visit` makes of the weight of 64 channels, zeros behind the window's rows and behind the last channel; it is
// told where they stand.
template <typename Visit>
__device__ __forceinline__ void each_weight(const Problem& a, const Shared& smem, int first, Visit visit) {
  const int columns = a.blocks() * 16, row = Config::kColumns;
#pragma unroll 8
  for (int i = threadIdx.x; i < kChannels * columns; i += kThreads) {
    const int k = i / columns, column = i - k * columns, r = column / row, place = column - r * row,
              s = place / a.pixels.channels;
    const int c = place - s * a.pixels.channels;
    const bool there = first + k < a.target.outs && r < a.axes.h.window && s < a.axes.w.window;
    const T* from = a.weight + (first + k) * a.steps_k + c * a.steps_c + r * a.steps_r + s * a.steps_s;
    visit(there ? *from : narrow<T>(0.0f), smem.weight + k * a.weight_pitch() + column * 2);
  }
}

__device__ __forceinline__ Scale load_weight(const Problem& a, const Shared& smem, int first) {
  if constexpr (!Numbers::kFloat) {
    each_weight(a, smem, first, [](auto v, char* to) { *reinterpret_cast<T*>(to) = v; });
    return {0, 0};
  } else {
    unsigned largest = 0;
    if (Config::kScaled) each_weight(a, smem, first, [&](auto v, char*) { largest = merged(largest, seen(v)); });
    const Scale found = Numbers::template scale<kThreads>(largest);
    each_weight(a, smem, first, [&](auto v, char* to) {
      const unsigned parts = Numbers::word(v, found.down());
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        *reinterpret_cast<unsigned short*>(to + p * a.weight_part()) = static_cast<unsigned short>(parts >> p * 16);
    });
    return found;
  }
}

// Two neighbours from an address that is a multiple of two of them, or of one; each of their parts side by side.
__device__ __forceinline__ void pair_at(const char* p, unsigned (&parts)[kParts]) {
  if constexpr (Numbers::kFloat) {
    Vec<unsigned, 2> words;
    if constexpr (Config::kEven) {
      words = *reinterpret_cast<const Vec<unsigned, 2>*>(p);
    } else {
      words.at[0] = reinterpret_cast<const unsigned*>(p)[0], words.at[1] = reinterpret_cast<const unsigned*>(p)[1];
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) parts[i] = __byte_perm(words.at[0], words.at[1], i == 0 ? 0x5410 : 0x7632);
  } else if constexpr (Config::kEven) {
    parts[0] = *reinterpret_cast<const unsigned*>(p);
  } else {
    const unsigned short* halves = reinterpret_cast<const unsigned short*>(p);
    parts[0] = halves[0] | static_cast<unsigned>(halves[1]) << 16;
  }
}

// What is left of a pair that begins in column `first` of a row of the window.
__device__ __forceinline__ unsigned kept(int first, int width) {
  return first + 1 < width ? 0xffffffffu : first < width ? 0xffffu : 0u;
}

template <bool kStrange>
__device__ __forceinline__ void multiply(const Problem& a, const char* of_weight, const char* of_pixels, int pass,
                                         float (&sums)[2][kTogether / 2]) {
  const int own = fresh_thread(), lane = own % 32, first = own / 32 * 2, pair = lane % 4 * 2;
  const int step = a.pixels.step(), down = a.pixels.down();
  const char* pixels = of_pixels + first * down + lane / 4 * step + pair * static_cast<int>(sizeof(T));
  const unsigned weight =
      shared_address(of_weight) + (pass + lane % 8 + lane / 16 * 8) * a.weight_pitch() + lane / 8 % 2 * 16;
  const unsigned last = kept((kChunks - 1) * 8 + pair, a.axes.w.window * a.pixels.channels);
  int offset = 0, chunk = 0, left = a.axes.h.window * kChunks;
  for (int block = 0; block < a.blocks(); ++block) {
    unsigned found[2][kParts][4];
#pragma unroll
    for (int half = 0; half < 2; ++half, --left) {
      const unsigned mask = left <= 0 ? 0 : chunk == kChunks - 1 ? last : 0xffffffffu;
      const char* from = pixels + (left > 0 ? offset : 0);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int later = 0; later < 2; ++later) {
          unsigned parts[kParts];
          pair_at(from + i * down + later * 8 * step, parts);
#pragma unroll
          for (int p = 0; p < kParts; ++p) found[i][p][half * 2 + later] = parts[p] & mask;
        }
      offset += Numbers::kChunk;
      if (++chunk == kChunks) chunk = 0, offset += a.pixels.tap_row() - kChunks * Numbers::kChunk;
    }
#pragma unroll
    for (int n = 0; n < kTogether / 16; ++n) {
      unsigned b[kParts][4];
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        ldmatrix_x4(weight + p * a.weight_part() + n * 16 * a.weight_pitch() + block * 32, b[p]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unsigned right[kParts][2];
#pragma unroll
        for (int p = 0; p < kParts; ++p) right[p][0] = b[p][2 * j], right[p][1] = b[p][2 * j + 1];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          Numbers::template add<kStrange>(reinterpret_cast<float (&)[4]>(sums[i][n * 8 + j * 4]), found[i], right);
      }
    }
  }
}

// The sums as numbers again.
__device__ __forceinline__ void scale_back(float (&sums)[2][kTogether / 2], const Factors& factors) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < kTogether / 2; ++j) sums[i][j] = factors(sums[i][j]);
}

__device__ __forceinline__ void write(const Problem& a, const float (&sums)[2][kTogether / 2], const ThinRegion& region,
                                      int first) {
  const int own = fresh_thread();
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int p = region.p + own / 32 * 2 + i, q = region.q + own % 32 / 4 + half * 8;
      const long long at = region.image * a.target.y_n + p * a.target.y_h + q * a.target.y_w;
      write_row<Config, kTogether>(a.target, sums[i], half, 0, first, at, p < a.axes.h.out && q < a.axes.w.out);
    }
}

// `regions`: of a tile of channels. Steps of the weight and of y in elements; `channels` and `outs` of x and y.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, R* __restrict__ y, const __grid_constant__ Arguments a) {
  const Problem problem = {weight,        target_of<T, R>(bias, residual, y, a),
                           a.axes,        a.w_strides.n,
                           a.w_strides.c, a.w_strides.h,
                           a.w_strides.w, {x, a.axes, a.channels}};
  const Shared smem(problem);
  const int first = blockIdx.y * kChannels;
  __shared__ Scale smem_scales[2];  // of weight and pixels: the registers are for the sums
  const Scale of_weight = load_weight(problem, smem, first);
  if (threadIdx.x == 0) smem_scales[0] = of_weight;
  const auto region = [&](int i) { return ThinRegion::of(fresh(i), a.regions_h, a.regions_w, kSide); };
  char* pixels = smem.pixels;
  int other = problem.pixels.bytes();  // where the next region's pixels go to: to the place beside, and back
  if constexpr (Numbers::kFloat) problem.pixels.bring<kThreads>(pixels, region(blockIdx.x));
  for (int i = blockIdx.x; i < a.regions; i += gridDim.x) {
    if constexpr (Numbers::kFloat) {
      const Scale found =
          problem.pixels.into_parts<kThreads, Numbers>(pixels, [](Scale of_pixels) { return of_pixels; });
      if (threadIdx.x == 0) smem_scales[1] = found;
      __syncthreads();
      if (i + gridDim.x < a.regions) problem.pixels.bring<kThreads>(pixels + other, region(i + gridDim.x));
    } else {
      __syncthreads();
      problem.pixels.load<kThreads>(pixels, region(i));
      __syncthreads();
    }
#pragma unroll 1
    for (int pass = 0; pass < kChannels && first + pass < a.outs; pass += kTogether) {
      float sums[2][kTogether / 2] = {};
      if (kParts == 2 && (smem_scales[0].strange || smem_scales[1].strange)) {
        multiply<true>(problem, smem.weight, pixels, pass, sums);
      } else {
        multiply<false>(problem, smem.weight, pixels, pass, sums);
      }
      if constexpr (Config::kScaled) scale_back(sums, Factors(smem_scales[0].exponent + smem_scales[1].exponent));
      write(problem, sums, region(i), first + pass);
    }
    if constexpr (Numbers::kFloat) pixels += other, other = -other;
  }
}
