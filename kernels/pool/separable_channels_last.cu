// Means over windows of any kind over two axes in channels-last memory.
//
// Layout:  first down, then along, as in separable.cu: a block takes one row of windows and up to `lanes` vectors of
//          channels. A thread sums a vector of kWide channels of one column over the rows of x that the windows cover,
//          kFlight of them under way at once, and leaves the sums in shared memory; then it takes kPiece channels of a
//          window and sums over its columns.
// Needs:   pointers and channels aligned to kWide elements; dynamic shared memory for the sums of W x `lanes` vectors.
// Bound:   memory: x read about once (rows that windows share meet in the caches).

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr bool kAdaptive = true;
  static constexpr int kWide = 8;
  static constexpr int kFlight = 10;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long inner;
  dnnarray::Divider lanes;
  dnnarray::Divider chunks;
  dnnarray::Divider heights;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
};
#define DNNARRAY_ENTRY pool_separable_channels_last_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kFlight = Config::kFlight, kThreads = Config::kThreads;
constexpr int kMost = 16 / static_cast<int>(sizeof(A)), kPiece = kWide < kMost ? kWide : kMost,
              kPieces = kWide / kPiece;
using Piece = Vec<A, kPiece>;

// The sums of a column over the rows of a window, given what lies in the first row of them.
__device__ __forceinline__ void add_up(A (&sum)[kWide], const T* x, int count, long long step) {
#pragma unroll
  for (int j = 0; j < kWide; ++j) sum[j] = A(0);
#pragma unroll 1
  for (; count > 0; count -= kFlight) {
    Packed<T, kWide> rows[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f, x += step) {
      rows[f].fill(T{});
      if (f < count) rows[f].read(x);
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] += widen(rows[f].at(j));
  }
}

// Of blocks, fastest are the chunks of `lanes` vectors, of which all channels have `inner`, then the rows of windows,
// then the batch.
extern "C" __global__ void __launch_bounds__(kThreads, 768 / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem[];
  Piece* const smem_sums = reinterpret_cast<Piece*>(smem);  // by pieces of a vector, columns, vectors
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const Divider by_vector = a.lanes;
  const long long inner = a.inner;
  const Split chunk = a.chunks(blockIdx.x), place = a.heights(chunk.quotient);
  const int first = chunk.rest * by_vector.divisor, vectors = axis_w.extent * by_vector.divisor;
  const long long column = inner * kWide, row = axis_w.extent * column;
  const Taps h = axis_h.taps(place.rest);
  x += (place.quotient * axis_h.extent + h.start + h.first * axis_h.dilation) * row;

  for (int t = threadIdx.x; t < vectors; t += kThreads) {
    const Split at = by_vector(t);
    if (first + at.rest >= inner) continue;
    A sum[kWide];
    add_up(sum, x + at.quotient * column + (first + at.rest) * kWide, h.last - h.first, axis_h.dilation * row);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece piece;
#pragma unroll
      for (int k = 0; k < kPiece; ++k) piece.at[k] = sum[i * kPiece + k];
      smem_sums[i * vectors + t] = piece;
    }
  }
  __syncthreads();

  const A rows = A(axis_h.count(h, a.padded));
  y += chunk.quotient * axis_w.outputs * column;
  for (int t = threadIdx.x; t < axis_w.outputs * by_vector.divisor * kPieces; t += kThreads) {
    const Split at = by_vector(t / kPieces);
    const int q = static_cast<int>(at.quotient), i = t % kPieces;
    if (first + at.rest >= inner) continue;
    const Taps w = axis_w.taps(q);
    A sum[kPiece] = {};
    for (int s = w.first; s < w.last; ++s) {
      const Piece next = smem_sums[i * vectors + (w.start + s * axis_w.dilation) * by_vector.divisor + at.rest];
#pragma unroll
      for (int k = 0; k < kPiece; ++k) sum[k] += next.at[k];
    }
    const A share = inverse(rows * A(axis_w.count(w, a.padded)));
#pragma unroll
    for (int k = 0; k < kPiece; ++k) sum[k] *= share;
    store(y + q * column + (first + at.rest) * kWide + i * kPiece, narrow_all<T, kPiece>(sum));
  }
}
