// Gradient of pooling with windows of up to 5 x 5: dx = the sum over the windows that cover an element of what they
// give to it.
//
// Maximum: all of its gradient, if the window's maximum stands here; mean: its share. (Norms: norm_gradient.cu and
//          norm_gradient_channels_last.cu.)
// Layout:  channels-first: a thread owns the columns under kGroup windows, which are whole vectors of kWide elements;
//          channels-last: the columns under kGroup windows, of kWide neighbouring channels. It walks down kSteps rows
//          of tiles, each of which starts where a window starts and is kStrideH high: the same few windows cover all of
//          a tile, which tap of which window stands where is known at compile time, and rows of windows that successive
//          tiles share stay in registers.
// Needs:   pointers and W (or the channels) aligned to kWide elements, grad to kPiece; dilation 1; planes below 2^31.
// Bound:   memory: grad and what was saved read about once, dx written once.

#include "dnnarray/core/overlap.cuh"
#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 4;
  static constexpr int kGroup = 2;
  static constexpr int kPiece = 2;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
  using Saved = unsigned char;
  static constexpr int kRule = 0;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
  int padded;
};
#define DNNARRAY_ENTRY pool_small_windows_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kPiece = Config::kPiece, kSteps = Config::kSteps, kBefore = Config::kBefore;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kRule = Config::kRule;  // as in gather.cu

// Rows of windows over a tile; windows beside the thread's own ones, of which a row has kWindows; values that a thread
// keeps of a row.
constexpr int kRows = (kWindowH - 1) / kStrideH + 1, kOwn = Config::kGroup, kValues = kLast ? kWide : 1;
constexpr int kColumns = kOwn * kStrideW, kVectors = kLast ? kColumns : kColumns / kWide;
constexpr int kLeft = (kWindowW - 1 - kBefore) / kStrideW, kRight = (kBefore + kStrideW - 1) / kStrideW,
              kWindows = kLeft + kOwn + kRight;

constexpr bool kSaves = kRule != kMean;
using V = Vec<T, kWide>;

// What the windows of a row say: their gradient, and where their maximum stands, as the tap or the distance along the
// plane from their first tap. Of a mean, the sums of shares for each column are enough, and the share that a row of
// taps gets.
struct Row {
  A columns[kColumns][kValues];
  A down;
  A grad[kWindows][kValues];
  int saved[kWindows][kValues];
};

struct Source {
  const T* grad;       // of the first own window, in row 0
  const Saved* saved;  // likewise
  Axis<false> h, w;
  int q, column;
  bool padded;
  A across[kWindows];  // of a mean: what each column of a window gets

  __device__ __forceinline__ Source(const T* first_grad, const Saved* first_saved, const Axis<false>& axis_h,
                                    const Axis<false>& axis_w, int first_q, int step, bool counted)
      : grad(first_grad), saved(first_saved), h(axis_h), w(axis_w), q(first_q), column(step), padded(counted) {
    if constexpr (kRule == kMean) {
#pragma unroll
      for (int b = 0; b < kWindows; ++b) across[b] = share_of<kWindowW, A>(w.count(w.taps(q + b - kLeft), padded));
    }
  }

  // Windows b to b + N - 1 in channels-first, window b in channels-last; one that does not exist gives nothing.
  template <int N>
  __device__ __forceinline__ void fill(Row& row, int p, int b) const {
    const int i = b - kLeft;
    const bool there = static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs) &&
                       static_cast<unsigned>(q + i) < static_cast<unsigned>(w.outputs);
    const T* grads = grad + static_cast<long long>(p) * (w.outputs * column);  // a row has fewer than 2^31 elements
    const Saved* places = saved + static_cast<long long>(p) * (w.outputs * column);
    Packed<T, N> reg_grad;
    Codes<Saved, N> reg_saved;
    reg_grad.fill(T{});
    reg_saved.fill(static_cast<Saved>(-1));
    if (there) {
      reg_grad.read(grads + i * column);
      if constexpr (kSaves) reg_saved.read(places + i * column);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int window = b + (kLast ? 0 : k), value = kLast ? k : 0;
      row.grad[window][value] = widen(reg_grad.at(k));
      if constexpr (kRule == kTap) row.saved[window][value] = static_cast<int>(reg_saved.at(k));
      if constexpr (kRule == kPlace)
        row.saved[window][value] = distance(static_cast<long long>(reg_saved.at(k)), p, q + window - kLeft);
    }
  }
  __device__ __forceinline__ int distance(long long place, int p, int i) const {
    const long long start = static_cast<long long>(p * h.stride - h.before) * w.extent + i * kStrideW - kBefore;
    const long long d = place - start;
    return d >= 0 && d < (1 << 30) ? static_cast<int>(d) : -1;
  }

  __device__ __forceinline__ Row read(int p) const {
    Row row;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int i = b - kLeft;
      if constexpr (kLast) {
        fill<kWide>(row, p, b);
      } else if (i < 0 || i >= kOwn) {
        fill<1>(row, p, b);
      } else if (i % kPiece == 0) {
        fill<kPiece>(row, p, b);
      }
    }
    if constexpr (kRule == kMean) {
      row.down = share_of<kWindowH, A>(h.count(h.taps(p), padded));
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int j = 0; j < kValues; ++j) {
          row.columns[c][j] = A(0);
#pragma unroll
          for (int b = 0; b < kWindows; ++b) {
            const int s = c + kBefore - (b - kLeft) * kStrideW;
            if (s >= 0 && s < kWindowW) row.columns[c][j] += row.grad[b][j] * across[b];
          }
        }
    }
    return row;
  }
};

// The gradient of the element in row i of the tile and column c of the thread's columns; rows[a] is the a-th row of
// windows above.
__device__ __forceinline__ A gradient(const Row (&rows)[kRows], int i, int c, int value, int width) {
  A sum = 0;
#pragma unroll
  for (int a = kRows - 1; a >= 0; --a) {
    if (kRule == kMean && i + a * kStrideH < kWindowH) sum += rows[a].columns[c][value] * rows[a].down;
#pragma unroll
    for (int b = 0; b < kWindows && kRule != kMean; ++b) {
      const int r = i + a * kStrideH, s = c + kBefore - (b - kLeft) * kStrideW;
      if (r >= kWindowH || s < 0 || s >= kWindowW) continue;
      const int tap = kRule == kTap ? tap_code(r, s) : r * width + s;
      if (rows[a].saved[b][value] == tap)
        sum += rows[a].grad[b][value];  // one predicated addition; to add 0 instead is a choice besides
    }
  }
  return sum;
}

// Arguments as in small_windows.cu; threads are shared out over the elements of x.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Saved* __restrict__ saved, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  begin_ahead();
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Share<Config> share(thread, a.among);
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const int q = share.group * kOwn, column = share.column, first = share.strip * kSteps;
  const long long plane = share.plane, channel = share.channel;
  const long long from = (plane * axis_h.outputs * axis_w.outputs + q) * column + channel;
  grad += from, saved += from;
  if constexpr (kSteps == 1) take_after_previous_kernel(grad, saved);
  const Source source(grad, saved, axis_h, axis_w, q, column, a.padded != 0);
  const long long to = (plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + channel;

  Row rows[kRows];
#pragma unroll
  for (int a = 1; a < kRows; ++a) rows[a] = source.read(first - a);
#pragma unroll
  for (int tile = first; tile < first + kSteps; ++tile) {
    const int top = tile * kStrideH - axis_h.before;
    if (top >= axis_h.extent) return;
    rows[0] = source.read(tile);
#pragma unroll
    for (int i = 0; i < kStrideH; ++i) {
      if (static_cast<unsigned>(top + i) >= static_cast<unsigned>(axis_h.extent)) continue;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (q * kStrideW + v * (kLast ? 1 : kWide) >= axis_w.extent) continue;
        T* const at =
            dx + to + static_cast<long long>(top + i) * (axis_w.extent * column) + v * (kLast ? column : kWide);
        V reg_dx;
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          reg_dx.at[j] = narrow<T>(gradient(rows, i, kLast ? v : v * kWide + j, kLast ? j : 0, axis_w.extent));
        }
        store(at, reg_dx);
      }
    }
#pragma unroll
    for (int a = kRows - 1; a > 0; --a) rows[a] = rows[a - 1];
  }
}
