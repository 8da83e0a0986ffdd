// The gradient of an input of few channels: dx[n, h, w, c] = sum over k and the taps that (h, w) meets of dy[n, p, q,
// k] * weight[k, c, r, s], with h = p * stride + r - before. One matrix product for each row r of the window, D[(p, q),
// (s, c)] = sum over k of dy[p, q, k] * weight[k, c, r, s], of which every pixel of the input then gathers what is its
// own: of kStride neighbouring rows r each pixel meets one. Float32 numbers are multiplied as parts
// (small_channels.cuh).
//
// Layout:  dy and dx channels-last in memory, dense; the weight by steps, which may be negative. A block takes regions
//          of kHeight x kWidth pixels of the input, one after another: the places of dy that they meet, kRows at most,
//          come to shared memory, rows of K and a pad; the weight stands there once for all regions, (r, s and c, k), S
//          * C filled up to kColumns. D stands in shared memory, float, for kStride rows at a time, of one of which a
//          warp multiplies 32 places. A thread owns pixels kThreads apart, all of their channels.
// Needs:   sm_80; K a multiple of 32, pointers aligned to 16 bytes; places of a region at most kRows, S * C at most
//          kColumns; no dilation, no third axis.
// Bound:   the tensor cores. Sums in float32, always in the same order.

#include "conv/small_channels.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Part = dnnarray::bfloat16_t;
  static constexpr int kParts = 1;
  static constexpr bool kScaled = false;
  static constexpr int kChannels = 3;
  static constexpr int kColumns = 24;
  static constexpr int kStride = 2;
  static constexpr int kHeight = 16;
  static constexpr int kWidth = 32;
  static constexpr int kRows = 224;
};
struct Arguments {
  int images;
  int outs;
  int regions_h;
  int regions_w;
  dnnarray::Strides w_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_thin_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using P = Config::Part;
using Numbers = ThinNumbers<T, P, Config::kParts, Config::kScaled>;
constexpr int kParts = Config::kParts, kPieces = sizeof(T) / 2;  // of 16 bytes, for 8 neighbours
constexpr int kSteps = 2 / kParts;                               // of 16 along the sum, at a time
constexpr int kChannels = Config::kChannels, kColumns = Config::kColumns, kStride = Config::kStride;
constexpr int kHeight = Config::kHeight, kWidth = Config::kWidth;
constexpr int kThreads = 256, kWarps = kThreads / 32, kRows = Config::kRows,
              kPixels = (kHeight * kWidth + kThreads - 1) / kThreads;
constexpr int kSumsPitch = kColumns + 2;  // pixels kStride apart and pairs of columns meet different banks

extern __shared__ __align__(16) char smem_memory[];

struct Problem {
  const T *dy, *weight;
  T* dx;
  ConvAxis h, w;
  long long steps_k, steps_c, steps_r, steps_s;  // of the weight
  int outs, regions_h, regions_w;

  __device__ __forceinline__ int pitch() const {
    return outs * static_cast<int>(sizeof(T)) + 16;
  }  // bytes of a row of shared memory
};

struct Shared {
  char *dy, *weight;
  float* sums;

  __device__ __forceinline__ Shared(char* memory, const Problem& a)
      : dy(memory),
        weight(dy + kRows * a.pitch()),
        sums(reinterpret_cast<float*>(weight + a.h.window * kColumns * a.pitch())) {}
};

// The places of the result along an axis that the pixels from `first` on meet: the first one, and how many.
struct Met {
  int first, count;

  __device__ __forceinline__ static Met of(const ConvAxis& axis, int first, int pixels) {
    const int lowest = first + axis.before - (axis.window - 1), highest = first + axis.before + pixels - 1;
    const int low = lowest > 0 ? (lowest + kStride - 1) / kStride : lowest / kStride;
    return {low, max(highest / kStride - low + 1, 1)};
  }
};

// What `visit` makes of the weight; it is told where they stand.
template <typename Visit>
__device__ __forceinline__ void each_weight(const Problem& a, const Shared& smem, Visit visit) {
  const int count = a.h.window * kColumns * a.outs;
#pragma unroll 8
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int k = i % a.outs, column = i / a.outs % kColumns, r = i / a.outs / kColumns, s = column / kChannels,
              c = column % kChannels;
    const T found =
        s < a.w.window ? a.weight[k * a.steps_k + c * a.steps_c + r * a.steps_r + s * a.steps_s] : narrow<T>(0.0f);
    visit(found, smem.weight + (r * kColumns + column) * a.pitch() + k / 8 * Numbers::kChunk + k % 8 * 2);
  }
}

__device__ __forceinline__ Scale load_weight(const Problem& a, const Shared& smem) {
  if constexpr (!Numbers::kFloat) {
    each_weight(a, smem, [](auto v, char* to) { *reinterpret_cast<T*>(to) = v; });
    return {0, 0};
  } else {
    unsigned largest = 0;
    if (Config::kScaled) each_weight(a, smem, [&](auto v, char*) { largest = merged(largest, seen(v)); });
    const Scale found = Numbers::template scale<kThreads>(largest);
    each_weight(a, smem, [&](auto v, char* to) {
      const unsigned parts = Numbers::word(v, found.down());
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        *reinterpret_cast<unsigned short*>(to + p * 16) = static_cast<unsigned short>(parts >> p * 16);
    });
    return found;
  }
}

// The places that a region meets, zeros where there are none: a thread brings all pieces of its chunks of 8 channels.
__device__ __forceinline__ void load_places(const Problem& a, const Shared& smem, long long image, const Met& rows,
                                            const Met& columns) {
  const int chunks = a.outs / 8, count = kRows * chunks;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = i / chunks, chunk = i % chunks, row = place / columns.count, p = rows.first + row;
    const int q = columns.first + place - row * columns.count;
    const bool there = row < rows.count && p >= 0 && p < a.h.out && q >= 0 && q < a.w.out;
    const T* from = a.dy + (there ? ((image * a.h.out + p) * a.w.out + q) * a.outs + chunk * 8 : 0);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      cp_async_cg(shared_address(smem.dy + place * a.pitch() + chunk * Numbers::kChunk + piece * 16),
                  from + (there ? piece * 4 : 0), there);
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();
}

// What each thread does with the chunks that it has brought.
template <typename Visit>
__device__ __forceinline__ void each_chunk(const Problem& a, const Shared& smem, Visit visit) {
  const int chunks = a.outs / 8, count = kRows * chunks;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kThreads)
    visit(smem.dy + i / chunks * a.pitch() + i % chunks * Numbers::kChunk);
}

__device__ __forceinline__ Scale into_parts(const Problem& a, const Shared& smem) {
  unsigned largest = 0;
  if constexpr (Config::kScaled)
    each_chunk(a, smem, [&](const char* at) { largest = merged(largest, Numbers::seen_in(at)); });
  const Scale found = Numbers::template scale<kThreads>(largest);
  each_chunk(a, smem, [&](char* at) { Numbers::chunk(at, found.down()); });
  return found;
}

// D of row r of the window, 32 places, into one of kStride parts.
template <bool kStrange>
__device__ __forceinline__ void multiply(const Problem& a, const Shared& smem, int r, int place, float* part) {
  const int lane = threadIdx.x % 32, pitch = a.pitch();
  const unsigned of_dy = shared_address(smem.dy) + (place + lane % 16) * pitch + lane / 16 * Numbers::kChunk;
  const int matrix = lane / 8,
            of_matrix = kParts == 2 ? matrix % 2 * Numbers::kChunk + matrix / 2 * 16 : matrix * Numbers::kChunk;
  const unsigned of_weight = shared_address(smem.weight) + (r * kColumns + lane % 8) * pitch + of_matrix;
  float sums[2][kColumns / 8][4] = {};
#pragma unroll 1
  for (int k = 0; k < a.outs; k += 16 * kSteps) {
    const int chunk = k / 8 * Numbers::kChunk;
    unsigned left[2][kSteps][kParts][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
#pragma unroll
        for (int p = 0; p < kParts; ++p)
          ldmatrix_x4(of_dy + i * 16 * pitch + chunk + j * 2 * Numbers::kChunk + p * 16, left[i][j][p]);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      unsigned all[4];  // of two steps, or of one in two parts
      ldmatrix_x4(of_weight + n * 8 * pitch + chunk, all);
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        unsigned right[kParts][2];
#pragma unroll
        for (int p = 0; p < kParts; ++p) right[p][0] = all[2 * (j + p)], right[p][1] = all[2 * (j + p) + 1];
#pragma unroll
        for (int i = 0; i < 2; ++i) Numbers::template add<kStrange>(sums[i][n], left[i][j], right);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = part + (place + i * 16 + lane / 4 + half * 8) * kSumsPitch + n * 8 + lane % 4 * 2;
        *reinterpret_cast<Vec<float, 2>*>(to) = {{sums[i][n][2 * half], sums[i][n][2 * half + 1]}};
      }
}

// What a pixel gathers of D of the rows from `first` on: the taps of the one that it meets.
__device__ __forceinline__ void gather(const Problem& a, const Shared& smem, float (&found)[kChannels], int h, int w,
                                       int first, const Met& rows, const Met& columns) {
  constexpr int kTaps = (kColumns / kChannels + kStride - 1) / kStride;  // along w, at most
  const int from_h = (h + a.h.before - first) % kStride, from_w = (w + a.w.before) % kStride;
  const int r = first + (from_h < 0 ? from_h + kStride : from_h), s = from_w < 0 ? from_w + kStride : from_w;
  if (r >= a.h.window) return;
  const int row = (h + a.h.before - r) / kStride - rows.first, column = (w + a.w.before - s) / kStride - columns.first;
  const float* from = smem.sums + ((r - first) * kRows + row * columns.count + column) * kSumsPitch + s * kChannels;
#pragma unroll
  for (int t = 0; t < kTaps; ++t, from += kStride * kChannels - kSumsPitch) {
    if (s + t * kStride >= a.w.window) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) found[c] += from[c];
  }
}

__device__ __forceinline__ void region(const Problem& a, const Shared& smem, long long index, const Scale& of_weight) {
  const Split by_w = split(index, a.regions_w), by_h = split(by_w.quotient, a.regions_h);
  const int first_h = by_h.rest * kHeight, first_w = by_w.rest * kWidth;
  const Met rows = Met::of(a.h, first_h, kHeight), columns = Met::of(a.w, first_w, kWidth);
  load_places(a, smem, by_h.quotient, rows, columns);
  Scale of_dy = {0, 0};
  if constexpr (Numbers::kFloat) of_dy = into_parts(a, smem);
  const bool strange = kParts == 2 && (of_weight.strange || of_dy.strange);
  float found[kPixels][kChannels] = {};
  for (int r = 0; r < a.h.window; r += kStride) {
    __syncthreads();
    for (int task = threadIdx.x / 32; task < kStride * (kRows / 32); task += kWarps) {
      const int i = task / (kRows / 32), place = task % (kRows / 32) * 32;
      if (r + i >= a.h.window) continue;
      float* const part = smem.sums + i * kRows * kSumsPitch;
      if (strange) {
        multiply<true>(a, smem, r + i, place, part);
      } else {
        multiply<false>(a, smem, r + i, place, part);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int pixel = static_cast<int>(threadIdx.x) + i * kThreads;
      if (kHeight * kWidth % kThreads != 0 && pixel >= kHeight * kWidth) continue;
      gather(a, smem, found[i], first_h + pixel / kWidth, first_w + pixel % kWidth, r, rows, columns);
    }
  }
  const Factors factors(of_weight.exponent + of_dy.exponent);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int pixel = static_cast<int>(threadIdx.x) + i * kThreads, h = first_h + pixel / kWidth,
              w = first_w + pixel % kWidth;
    if (pixel >= kHeight * kWidth || h >= a.h.space || w >= a.w.space) continue;
    T* to = a.dx + ((by_h.quotient * a.h.space + h) * a.w.space + w) * kChannels;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) to[c] = narrow<T>(Config::kScaled ? factors(found[i][c]) : found[i][c]);
  }
}

// Steps of the weight in elements; `outs` is K.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ weight, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const Problem problem = {
      dy,     weight,      dx,         a.axes.h, a.axes.w, a.w_strides.n, a.w_strides.c, a.w_strides.h, a.w_strides.w,
      a.outs, a.regions_h, a.regions_w};
  const Shared smem(smem_memory, problem);
  const Scale of_weight = load_weight(problem, smem);
  for (long long i = blockIdx.x; i < static_cast<long long>(a.images) * a.regions_h * a.regions_w; i += gridDim.x) {
    __syncthreads();
    region(problem, smem, i, of_weight);
  }
}
