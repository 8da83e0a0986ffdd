// What the kernels for inputs of few channels share: pixels in shared memory as rows of neighbours, which windows are
// read from, and products of numbers as they come (half types) or of float32 numbers in one or two parts of a half type
// (parts.cuh).
//
// Float32 numbers turn into parts in their own place, by the thread that brought them: single ones into the halves of a
// word, the first part in the lower half; 8 neighbours into 16 bytes of first and 16 bytes of second parts. A power of
// two is that of a block's region. What is not finite has a first part like it and a second of 0; what it makes of the
// products with second parts is left out (kStrange).
#pragma once

#include "conv/geometry.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/mma/warp.cuh"
#include "conv/parts.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "dnnarray/ptx/opaque.cuh"

namespace dnnarray {

// The same number, which the compiler must not know: what follows from it is computed anew for each region, not kept in
// registers beside the sums.
__device__ __forceinline__ int fresh(int v) {
  opaque(v);
  return v;
}
__device__ __forceinline__ int fresh_thread() { return fresh(threadIdx.x); }

// T in memory, products of kParts parts of type P; kHasScale where a power of two brings them into its range.
template <typename T, typename P, int kParts, bool kHasScale>
struct ThinNumbers {
  static constexpr bool kScaled = kHasScale;
  static constexpr bool kFloat = sizeof(T) == 4;
  static constexpr int kChunk = 8 * sizeof(T);  // bytes of 8 neighbours in shared memory

  __device__ __forceinline__ static bool finite(float v) { return fabsf(v) < __uint_as_float(kInfinite); }
  __device__ __forceinline__ static void pair(float low, float high, float down, unsigned (&parts)[kParts]) {
    Parts<P, kParts>::of(low * down, high * down, parts);
    if constexpr (kParts == 2) parts[1] &= (finite(low) ? 0xffffu : 0) | (finite(high) ? 0xffff0000u : 0);
  }
  __device__ __forceinline__ static unsigned word(float v, float down) {
    unsigned parts[kParts];
    pair(v, 0.0f, down, parts);
    return kParts == 2 ? __byte_perm(parts[0], parts[kParts - 1], 0x5410) : parts[0];
  }
  __device__ __forceinline__ static void chunk(char* smem, float down) {
    const Vec<float, 4> low = load<float, 4>(reinterpret_cast<float*>(smem)),
                        high = load<float, 4>(reinterpret_cast<float*>(smem) + 4);
    unsigned found[4][kParts];
    pair(low.at[0], low.at[1], down, found[0]);
    pair(low.at[2], low.at[3], down, found[1]);
    pair(high.at[0], high.at[1], down, found[2]);
    pair(high.at[2], high.at[3], down, found[3]);
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      store(reinterpret_cast<unsigned*>(smem + p * 16),
            Vec<unsigned, 4>{{found[0][p], found[1][p], found[2][p], found[3][p]}});
  }
  __device__ __forceinline__ static unsigned seen_in(const char* smem) {
    const Vec<float, 4> low = load<float, 4>(reinterpret_cast<const float*>(smem)),
                        high = load<float, 4>(reinterpret_cast<const float*>(smem) + 4);
    float most = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) most = max_nan_abs(max_nan_abs(most, low.at[e]), high.at[e]);
    unsigned largest = seen(most);
    if (largest != kStrange) return largest;
#pragma unroll
    for (int e = 0; e < 4; ++e) largest = merged(largest, merged(seen(low.at[e]), seen(high.at[e])));
    return largest;
  }
  // What all threads of the block have seen, as a scale; they come together.
  template <int kThreads>
  __device__ __forceinline__ static Scale scale(unsigned largest) {
    if constexpr (!kScaled) return {0, 0};
    __shared__ unsigned smem_found[kThreads / kWarp];
    return Scale::of(block_reduce<kThreads>(largest, Merge(), smem_found));
  }

  // sums += a b.
  template <bool kStrange>
  __device__ __forceinline__ static void add(float (&sums)[4], const unsigned (&a)[kParts][4],
                                             const unsigned (&b)[kParts][2]) {
    if constexpr (kParts == 1) {
      Mma<P>::add(sums, a[0], b[0][0], b[0][1]);
    } else {  // the instruction cuts off what it adds to larger sums: the total is added up by rounding additions
      float first[4] = {}, later[4] = {};
      Mma<P>::add(later, a[1], b[0][0], b[0][1]);
      Mma<P>::add(later, a[0], b[1][0], b[1][1]);
      Mma<P>::add(first, a[0], b[0][0], b[0][1]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[e] = fmaf(kStrange && !finite(later[e]) ? 0.0f : later[e], kSecond, sums[e]);
        sums[e] += first[e];
      }
    }
  }
};

// A region of outputs: its image, its first row and column.
struct ThinRegion {
  int image, p, q;

  __device__ __forceinline__ static ThinRegion of(int i, int regions_h, int regions_w, int side) {
    const int row = i / regions_w, image = row / regions_h;
    return {image, (row - image * regions_h) * side, (i - row * regions_w) * side};
  }
};

// The pixels that a region of kSide x kSide outputs meets. A row of the window is S * C neighbours, filled up to
// kColumns.
template <typename T, int kSide, int kColumns>
struct ThinPixels {
  const T* x;
  ConvAxes axes;
  int channels;

  __device__ __forceinline__ int rows() const {
    return (kSide - 1) * axes.h.stride + (axes.h.window - 1) * axes.h.dilation + 1;
  }
  __device__ __forceinline__ int row_elements() const {
    return ((kSide - 1) * axes.w.stride + axes.w.window) * channels;
  }
  // Bytes of a row: a pad for what the last columns read behind the window, and that counts for nothing.
  __device__ __forceinline__ int pitch() const { return (row_elements() + kColumns + 1) / 2 * 2 * kBytes; }
  __device__ __forceinline__ int bytes() const { return rows() * pitch(); }
  __device__ __forceinline__ int step() const {
    return axes.w.stride * channels * kBytes;
  }  // from an output to the next
  __device__ __forceinline__ int down() const { return axes.h.stride * pitch(); }  // from a row of outputs to the next
  __device__ __forceinline__ int tap_row() const {
    return axes.h.dilation * pitch();
  }  // from a row of the window to the next

  // Zeros outside of the image; kBatch loads of a thread are on their way at a time.
  template <int kThreads>
  __device__ __forceinline__ void load(char* smem, const ThinRegion& region) const {
    constexpr int kLines = kThreads / kLine, kBatch = 8;
    const int first_h = first_row(region), begin = first_element(region);
    const int elements = row_elements(), width = axes.w.space * channels, count = rows(), own = fresh_thread();
    const T* from = image(region);
    for (int i = own % kLine; i < elements; i += kLine) {
      const bool inside = begin + i >= 0 && begin + i < width;
      for (int first = own / kLine; first < count; first += kBatch * kLines) {
        T found[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int row = first + b * kLines, h = first_h + row;
          const bool there = inside && row < count && h >= 0 && h < axes.h.space;
          found[b] = there ? from[static_cast<long long>(h) * width + begin + i] : narrow<T>(0.0f);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int row = first + b * kLines;
          if (row < count) reinterpret_cast<T*>(smem + row * pitch())[i] = found[b];
        }
      }
    }
  }

  // Float32 pixels on their way, without passing registers.
  template <int kThreads>
  __device__ __forceinline__ void bring(char* smem, const ThinRegion& region) const {
    constexpr int kLines = kThreads / kLine;
    const int begin = first_element(region), width = axes.w.space * channels, own = fresh_thread(), line = own / kLine;
    for (int i = own % kLine; i < row_elements(); i += kLine) {
      const bool inside = begin + i >= 0 && begin + i < width;
      int h = first_row(region) + line;
      const T* from = image(region) + static_cast<long long>(h) * width + begin + i;
      unsigned to = shared_address(smem) + line * pitch() + i * kBytes;
#pragma unroll 4
      for (int left = rows() - line; left > 0;
           left -= kLines, h += kLines, from += kLines * width, to += kLines * pitch()) {
        const bool there = inside && static_cast<unsigned>(h) < static_cast<unsigned>(axes.h.space);
        cp_async_ca<4>(to, there ? from : x, there);
      }
    }
    cp_async_commit_group();
  }

  // What `bring` has brought, as words of parts; those of all threads become one scale, which `reach` may raise. Waits
  // for all copies of the thread.
  template <int kThreads, typename Numbers, typename Reach>
  __device__ __forceinline__ Scale into_parts(char* smem, Reach reach) const {
    cp_async_wait_group<0>();
    unsigned largest = 0;
    if (Numbers::kScaled) {
      float most = 0;
      each_own<kThreads>(smem, [&](char* at) { most = max_nan_abs(most, *reinterpret_cast<const float*>(at)); });
      largest = seen(most);
      if (largest == kStrange)
        each_own<kThreads>(smem,
                           [&](char* at) { largest = merged(largest, seen(*reinterpret_cast<const float*>(at))); });
    }
    const Scale whole = reach(Numbers::template scale<kThreads>(largest));
    const float down = whole.down();
    each_own<kThreads>(smem, [&](char* at) {
      *reinterpret_cast<unsigned*>(at) = Numbers::word(*reinterpret_cast<const float*>(at), down);
    });
    return whole;
  }

 private:
  static constexpr int kBytes = sizeof(T), kLine = 128;  // threads that share a row

  __device__ __forceinline__ int first_row(const ThinRegion& region) const {
    return region.p * axes.h.stride - axes.h.before;
  }
  __device__ __forceinline__ int first_element(const ThinRegion& region) const {
    return (region.q * axes.w.stride - axes.w.before) * channels;
  }
  __device__ __forceinline__ const T* image(const ThinRegion& region) const {
    return x + static_cast<long long>(region.image) * axes.h.space * (axes.w.space * channels);
  }

  // The elements that a thread brings.
  template <int kThreads, typename Visit>
  __device__ __forceinline__ void each_own(char* smem, Visit visit) const {
    const int elements = row_elements(), own = fresh_thread();
    for (int i = own % kLine; i < elements; i += kLine) {
      char* at = smem + own / kLine * pitch() + i * kBytes;
#pragma unroll 4
      for (int left = rows() - own / kLine; left > 0; left -= kThreads / kLine, at += kThreads / kLine * pitch())
        visit(at);
    }
  }
};

}  // namespace dnnarray
