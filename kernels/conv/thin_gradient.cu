// The gradient of an input of few channels: dx[n, h, w, c] = sum over k and the taps that (h, w) meets of dy[n, p, q, k] * weight[k, c, r, s], with
// h = p * stride + r - before. One matrix product for each row r of the window, D[(p, q), (s, c)] = sum over k of dy[p, q, k] * weight[k, c, r, s],
// of which every pixel of the input then gathers what is its own: of kStride neighbouring rows r each pixel meets one.
//
// Layout:  dy and dx channels-last in memory, dense; the weight by steps, which may be negative. A block takes regions of kHeight x kWidth pixels
//          of the input, one after another: the places of dy that they meet, kRows at most, come to shared memory, rows of K and a pad; the
//          weight stands there once for all regions, (r, s and c, k), S * C filled up to kColumns. A warp multiplies 32 places; D stands in
//          shared memory, float, for kStride rows at a time. A thread owns pixels kThreads apart, all of their channels.
// Needs:   sm_80; K a multiple of 32, pointers aligned to 16 bytes; places of a region at most kRows, S * C at most kColumns; no dilation, no
//          third axis.
// Bound:   the tensor cores. Sums in float32, always in the same order.

#include "dnnarray/barrier.cuh"
#include "dnnarray/conv.cuh"
#include "dnnarray/vec.cuh"
#include "dnnarray/warp_product.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kChannels = 3;
  static constexpr int kColumns = 24;
  static constexpr int kStride = 2;
  static constexpr int kHeight = 16;
  static constexpr int kWidth = 32;
};
#define DNNARRAY_ENTRY conv_thin_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kChannels = Config::kChannels, kColumns = Config::kColumns, kStride = Config::kStride;
constexpr int kHeight = Config::kHeight, kWidth = Config::kWidth;
constexpr int kThreads = 256, kRows = 224, kPixels = kHeight * kWidth / kThreads;
constexpr int kSumsPitch = kColumns + 2;  // pixels kStride apart and pairs of columns meet different banks

extern __shared__ __align__(16) char smem_memory[];

struct Arguments {
  const T *dy, *weight;
  T* dx;
  ConvAxis h, w;
  long long steps_k, steps_c, steps_r, steps_s;  // of the weight
  int outs, regions_h, regions_w;

  __device__ __forceinline__ int pitch() const { return outs * 2 + 16; }  // bytes of a row of shared memory
};

struct Shared {
  char *dy, *weight;
  float* sums;

  __device__ __forceinline__ Shared(char* memory, const Arguments& a)
      : dy(memory), weight(dy + kRows * a.pitch()), sums(reinterpret_cast<float*>(weight + a.h.window * kColumns * a.pitch())) {}
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

__device__ __forceinline__ void load_weight(const Arguments& a, const Shared& smem) {
  const int count = a.h.window * kColumns * a.outs;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int k = i % a.outs, column = i / a.outs % kColumns, r = i / a.outs / kColumns, s = column / kChannels, c = column % kChannels;
    const T found = s < a.w.window ? a.weight[k * a.steps_k + c * a.steps_c + r * a.steps_r + s * a.steps_s] : narrow<T>(0.0f);
    *reinterpret_cast<T*>(smem.weight + (r * kColumns + column) * a.pitch() + k * 2) = found;
  }
}

// The places that a region meets, zeros where there are none.
__device__ __forceinline__ void load_places(const Arguments& a, const Shared& smem, long long image, const Met& rows, const Met& columns) {
  const int chunks = a.outs / 8, count = kRows * chunks;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int place = i / chunks, chunk = i % chunks, row = place / columns.count, p = rows.first + row;
    const int q = columns.first + place - row * columns.count;
    const bool there = row < rows.count && p >= 0 && p < a.h.out && q >= 0 && q < a.w.out;
    const T* from = a.dy + (there ? ((image * a.h.out + p) * a.w.out + q) * a.outs + chunk * 8 : 0);
    copy_async(smem_address(smem.dy + place * a.pitch() + chunk * 16), from, there);
  }
  commit_copies();
  wait_copies<0>();
}

// D of row r of the window, 32 places of this warp, into one of kStride parts.
__device__ __forceinline__ void multiply(const Arguments& a, const Shared& smem, int r, float* part) {
  const int lane = threadIdx.x % 32, place = threadIdx.x / 32 * 32, pitch = a.pitch();
  const unsigned of_dy = smem_address(smem.dy) + (place + lane % 16) * pitch + lane / 16 * 16;
  const unsigned of_weight = smem_address(smem.weight) + (r * kColumns + lane % 8) * pitch + lane / 8 * 16;
  float sums[2][kColumns / 8][4] = {};
#pragma unroll 1
  for (int k = 0; k < a.outs; k += 32) {
    unsigned left[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) load_matrices(left[i][j], of_dy + i * 16 * pitch + (k + j * 16) * 2);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      unsigned right[4];
      load_matrices(right, of_weight + n * 8 * pitch + k * 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Mma<T>::run(sums[i][n], left[i][0], right[0], right[1]);
        Mma<T>::run(sums[i][n], left[i][1], right[2], right[3]);
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
__device__ __forceinline__ void gather(const Arguments& a, const Shared& smem, float (&found)[kChannels], int h, int w, int first, const Met& rows,
                                       const Met& columns) {
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

__device__ __forceinline__ void region(const Arguments& a, const Shared& smem, long long index) {
  const Split by_w = split(index, a.regions_w), by_h = split(by_w.quotient, a.regions_h);
  const int first_h = by_h.rest * kHeight, first_w = by_w.rest * kWidth;
  const Met rows = Met::of(a.h, first_h, kHeight), columns = Met::of(a.w, first_w, kWidth);
  load_places(a, smem, by_h.quotient, rows, columns);
  float found[kPixels][kChannels] = {};
  for (int r = 0; r < a.h.window; r += kStride) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      if (r + i < a.h.window && threadIdx.x / 32 * 32 < kRows) multiply(a, smem, r + i, smem.sums + i * kRows * kSumsPitch);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int pixel = static_cast<int>(threadIdx.x) + i * kThreads;
      gather(a, smem, found[i], first_h + pixel / kWidth, first_w + pixel % kWidth, r, rows, columns);
    }
  }
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int pixel = static_cast<int>(threadIdx.x) + i * kThreads, h = first_h + pixel / kWidth, w = first_w + pixel % kWidth;
    if (h >= a.h.space || w >= a.w.space) continue;
    T* to = a.dx + ((by_h.quotient * a.h.space + h) * a.w.space + w) * kChannels;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) to[c] = narrow<T>(found[i][c]);
  }
}

// Steps of the weight in elements; `outs` is K.
extern "C" __global__ void __launch_bounds__(kThreads) DNNARRAY_ENTRY(
    const T* __restrict__ dy, const T* __restrict__ weight, T* __restrict__ dx, long long images, long long outs, long long regions_h,
    long long regions_w, long long steps_k, long long steps_c, long long steps_r, long long steps_s, long long h0, long long h1, long long h2,
    long long w0, long long w1, long long w2) {
  const Arguments a = {dy,      weight,  dx, {h0, h1, h2}, {w0, w1, w2}, steps_k, steps_c, steps_r, steps_s, static_cast<int>(outs),
                       static_cast<int>(regions_h), static_cast<int>(regions_w)};
  const Shared smem(smem_memory, a);
  load_weight(a, smem);
  for (long long i = blockIdx.x; i < images * regions_h * regions_w; i += gridDim.x) {
    __syncthreads();
    region(a, smem, i);
  }
}
