// Gradient of maximum pooling whose windows are small and do not overlap, in one pass: dx = grad where a window's
// maximum stands, else 0.
//
// Layout:  as in small_windows.cu; a thread reads the windows that it owns, finds their maxima and writes all of its
//          columns, also those that no window looks at.
// Needs:   as small_windows.cu, grad aligned to kPiece; no padding before the columns, and strides of at least the
//          window.
// Bound:   memory: x and grad read once, dx written once.

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 2;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 2;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 0;
  static constexpr int kWide = 4;
  static constexpr int kGroup = 2;
  static constexpr int kPiece = 2;
  static constexpr int kSteps = 1;
  static constexpr int kThreads = 128;
  static constexpr bool kMagnitude = false;
  static constexpr bool kLends = false;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_disjoint_gradient_default
#endif

using namespace dnnarray;
using S = Strip<Config, true>;
using T = S::T;
using A = S::A;
constexpr bool kLast = Config::kLast;
constexpr int kWide = S::kWide, kResults = S::kResults, kPiece = Config::kPiece;
constexpr int kWindowH = S::kWindowH, kWindowW = S::kWindowW, kStrideH = Config::kStrideH, kStrideW = S::kStrideW;
constexpr int kVectors = kLast ? kStrideW : kResults * kStrideW / kWide;  // of a row of dx

// The gradients of the windows, 0 for those that do not exist.
__device__ __forceinline__ Vec<T, kResults> gradients(const T* grad, int q, int outputs) {
  Vec<T, kResults> all{};
#pragma unroll
  for (int o = 0; o < kResults; o += kPiece) {
    if (q + (kLast ? 0 : o) >= outputs) continue;
    const Vec<T, kPiece> piece = load<T, kPiece>(grad + o);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) all.at[o + k] = piece.at[k];
  }
  return all;
}

// Vector v of row r of what the windows give to their elements.
__device__ __forceinline__ Vec<T, kWide> given(const Vec<T, kResults>& grad, const int (&taps)[kResults], int r,
                                               int v) {
  Vec<T, kWide> dx{};
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    const int column = kLast ? v : v * kWide + j, o = kLast ? j : column / kStrideW, s = column % kStrideW;
    if (r < kWindowH && s < kWindowW && taps[o] == tap_code(r, s)) dx.at[j] = grad.at[o];
  }
  return dx;
}

// Arguments as in small_windows.cu; threads are shared out over the elements of x.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Share<Config> share(thread, a.among);
  const int h_extent = a.h.extent, h_outputs = a.h.outputs, w_extent = a.w.extent, w_outputs = a.w.outputs;
  const int q = share.group * (kLast ? 1 : kResults), column = share.column, row = w_extent * column;
  const long long corner = (share.plane * h_extent * w_extent + q * kStrideW) * column + share.channel;
  const S source{x + corner, h_extent, w_extent, row, column, q * kStrideW};
  grad += (share.plane * h_outputs * w_outputs + q) * column + share.channel;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
    const int p = share.strip * Config::kSteps + step, h = p * kStrideH - a.h.before;
    if (h >= h_extent) return;
    S::Rows rows;
#pragma unroll
    for (int r = 0; r < kWindowH; ++r) rows[r] = source.read(h + r);
    Vec<T, kResults> reg_grad{};
    if (p < h_outputs) reg_grad = gradients(grad + static_cast<long long>(p) * w_outputs * column, q, w_outputs);
    int taps[kResults];
    const S::Row columns = S::down(rows);
    S::places(rows, columns, S::maxima(columns), h, q, taps);
#pragma unroll
    for (int r = 0; r < kStrideH; ++r)
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int c = v * (kLast ? 1 : kWide);
        if (source.inside(h + r, c))
          store(dx + corner + static_cast<long long>(h + r) * row + static_cast<long long>(c) * column,
                given(reg_grad, taps, r, v));
      }
  }
}
