// Gradient of pooling by the L1 or L2 norm with windows of up to 3 x 3, in one pass: dx = the sum over the windows that cover an element of their
// gradient times sign(x) (L1) or x / norm (L2), which are x times the sum of gradient / norm.
//
// Layout:  as in tiles.cu: a thread owns kGroup x kStrideW columns (channels-first) or kStrideW columns of kWide channels, and walks down kSteps rows of tiles. It reads all windows that meet its columns, and begins with the rows of
//          windows above its first tile, so that each norm is computed anew by the few threads that need it and never stored.
// Needs:   pointers and W (or the channels) aligned to kWide elements, grad to kPiece; dilation 1; planes below 2^31.
// Bound:   memory: x and grad read about once, dx written once.

#include "dnnarray/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kExponent = 2;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 4;
  static constexpr int kGroup = 2;
  static constexpr int kPiece = 2;
  static constexpr int kSteps = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_slopes_default
#endif

using namespace dnnarray;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kPiece = Config::kPiece, kSteps = Config::kSteps, kExponent = Config::kExponent;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW, kStrideW = Config::kStrideW;

// Rows of windows over a tile but for the first; windows that meet the thread's own columns, of which the first begins kLeft columns before these.
constexpr int kBack = (kWindowH - 1) / kStrideH, kOwn = kLast ? 1 : Config::kGroup, kValues = kLast ? kWide : 1, kColumns = kOwn * kStrideW;
constexpr int kWindowsLeft = (kWindowW - 1 - Config::kBefore) / kStrideW, kWindowsRight = (Config::kBefore + kStrideW - 1) / kStrideW;
constexpr int kWindows = kWindowsLeft + kOwn + kWindowsRight, kLeft = kWindowsLeft * kStrideW + Config::kBefore;
constexpr int kEnd = (kWindows - 1) * kStrideW + kWindowW - kLeft, kRight = kEnd > kColumns ? kEnd - kColumns : 0;
constexpr int kRows = kWindowH > kStrideH ? kWindowH : kStrideH;

// What a thread reads of a row is one window that holds all of these.
struct Around : Config {
  static constexpr bool kMagnitude = false, kLends = false;
  static constexpr int kBefore = kLeft, kWindowW = kLeft + kRight + ::kStrideW;
};
using S = Strip<Around, false>;
using T = S::T;
using A = S::A;
using Values = A[kValues];

// Whether a norm may need its elements scaled.
constexpr bool kScales = kExponent == 2 && !kSquaresFit<T>;

__device__ __forceinline__ A element(const S::Row& row, int c, int v) { return S::N::widened(row.cell(S::cell_of(kLast ? v : 0, c + kLeft))); }

// The sums of squares of what a row of x adds to each window.
struct Line {
  A sum[kWindows][kValues];

  __device__ __forceinline__ Line() {}
  __device__ __forceinline__ explicit Line(const S::Row& row) {
#pragma unroll
    for (int b = 0; b < kWindows && kExponent == 2; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        sum[b][v] = A(0);
#pragma unroll
        for (int s = 0; s < kWindowW; ++s) {
          const A x = element(row, b * kStrideW - kLeft + s, v);
          sum[b][v] += x * x;
        }
      }
  }
};

// The work of a thread: where its first own column and window lie in row 0, and which tiles it makes.
struct Task {
  S source;
  const T* grad;
  T* dx;
  Axis<false> h, w;
  int q, first, count;  // the first own window and tile; columns that are written

  __device__ __forceinline__ bool there(int p, int b) const {
    return static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs) && static_cast<unsigned>(q + b - kWindowsLeft) < static_cast<unsigned>(w.outputs);
  }

  // The gradients of the windows in row p; of one that does not exist, 0.
  template <int N>
  __device__ __forceinline__ void fill(A (&g)[kWindows][kValues], int p, int b) const {
    Packed<T, N> reg_grad;
    reg_grad.fill(T{});
    if (there(p, b)) reg_grad.read(grad + (static_cast<long long>(p) * w.outputs + b - kWindowsLeft) * source.column);
#pragma unroll
    for (int k = 0; k < N; ++k) g[kLast ? b : b + k][kLast ? k : 0] = widen(reg_grad.at(k));
  }
  __device__ __forceinline__ void gradients(A (&g)[kWindows][kValues], int p) const {
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int i = b - kWindowsLeft;
      if constexpr (kLast) {
        fill<kWide>(g, p, b);
      } else if (i < 0 || i >= kOwn) {
        fill<1>(g, p, b);
      } else if (i % kPiece == 0) {
        fill<kPiece>(g, p, b);
      }
    }
  }

  // Whether one of these windows of row p, given as bits, does hold anything but zeros.
  __device__ __forceinline__ bool holds(int p, unsigned windows) const {
    bool any = false;
#pragma unroll 1
    for (; windows != 0; windows &= windows - 1) {
      const int bit = __ffs(windows) - 1;
      any |= source.largest<kWindowH, kWindowW>(p * kStrideH - h.before, bit / kValues * kStrideW - kLeft, bit % kValues) != A(0);
    }
    return any;
  }

  // The gradient of one element, with all norms of scaled elements; seldom asked for.
  __device__ __forceinline__ A exact(int row, int c, int v) const {
    const A x = widen(source.x[static_cast<long long>(row) * source.row + c * source.column + v]);
    const Cover over_h = h.cover(row), over_w = w.cover(source.w + c);
    A all = 0;
#pragma unroll 1
    for (int p = over_h.first; p <= over_h.last; ++p)
#pragma unroll 1
      for (int i = over_w.first; i <= over_w.last; ++i) {
        const S::Scaled found = source.scaled_norm<kWindowH, kWindowW>(p * kStrideH - h.before, i * kStrideW - w.before - source.w, v);
        const A g = widen(grad[(static_cast<long long>(p) * w.outputs + i - q) * source.column + v]);
        const A norm = found.scale * found.norm;  // beyond the range of numbers, it is infinite to its elements too
        all += found.norm == A(0) ? A(0) : g * (norm - norm == A(0) ? x / found.scale / found.norm : x / norm);
      }
    return all;
  }
  __device__ __forceinline__ void repair() const {
    const int top = max(first * kStrideH - h.before, 0), end = min((first + kSteps) * kStrideH - h.before, h.extent);
#pragma unroll 1
    for (int row = top; row < end; ++row)
#pragma unroll 1
      for (int i = 0; i < count * kValues; ++i) {
        const int c = i / kValues, v = i % kValues;
        dx[static_cast<long long>(row) * source.row + c * source.column + v] = narrow<T>(exact(row, c, v));
      }
  }
};

// What the windows of row p give to the thread's columns, each sum to be multiplied by the element; `lines` are of their rows of x. Bits tell where
// a norm may have left the range.
__device__ __forceinline__ unsigned give(A (&given)[kColumns][kValues], const Task& task, const Line (&lines)[kWindowH], int p) {
  A slope[kWindows][kValues];
  task.gradients(slope, p);
  unsigned odd = 0;
#pragma unroll
  for (int b = 0; b < kWindows && kExponent == 2; ++b) {
    const bool there = task.there(p, b);  // others may hold elements all the same, whose norm is not to be seen
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      A sum = lines[0].sum[b][v];
#pragma unroll
      for (int r = 1; r < kWindowH; ++r) sum += lines[r].sum[b][v];
      if (kScales && there && out_of_range(sum)) odd |= 1u << (b * kValues + v);
      slope[b][v] = !there || sum == A(0) ? A(0) : slope[b][v] * near_inverse_root(sum);
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      given[c][v] = A(0);
#pragma unroll
      for (int b = 0; b < kWindows; ++b) {
        const int s = c + kLeft - b * kStrideW;
        if (s >= 0 && s < kWindowW) given[c][v] += slope[b][v];
      }
    }
  return odd;
}

// Row i of a tile.
__device__ __forceinline__ void put(const Task& task, const S::Row& x, const A (&given)[kBack + 1][kColumns][kValues], int i, int row) {
#pragma unroll
  for (int c = 0; c < kColumns; c += kLast ? 1 : kWide) {
    A y[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const int own = kLast ? c : c + j, v = kLast ? j : 0;
      A sum = 0;
#pragma unroll
      for (int a = kBack; a >= 0; --a) {
        if (i + a * kStrideH < kWindowH) sum += given[a][own][v];
      }
      y[j] = sum * (kExponent == 2 ? element(x, own, v) : sign(element(x, own, v)));
    }
    if (c < task.count) store(task.dx + static_cast<long long>(row) * task.source.row + c * task.source.column, narrow_all<T, kWide>(y));
  }
}

// Blocks of a multiprocessor for which there are registers.
constexpr int kBlocks = kLast && kWide == 8 ? (kBack > 1 ? 2 : 3) : 16 / static_cast<int>(sizeof(A));

// Arguments as in strips.cu; `groups` and `strips` cover the elements of x.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, const T* __restrict__ gmem_x, T* __restrict__ gmem_dx, long long total, long long inner,
                   long long by_inner, long long groups, long long by_group, long long strips, long long by_strip, long long height,
                   long long h_padding, long long width, long long w_padding) {
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const auto task_of = [&](unsigned tid) {
    const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + tid;
    const Share<Config> share(thread, inner, by_inner, groups, by_group, strips, by_strip);
    const int q = share.group * kOwn, column = share.column, count = axis_w.extent - q * kStrideW;
    const long long x = (share.plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + share.channel;
    const long long y = (share.plane * axis_h.outputs * axis_w.outputs + q) * column + share.channel;
    const S source{gmem_x + x, axis_h.extent, axis_w.extent, axis_w.extent * column, column, q * kStrideW};
    return Task{source, gmem_grad + y, gmem_dx + x, axis_h, axis_w, q, share.strip * kSteps, min(count, kColumns)};
  };
  if (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x >= total) return;
  const Task task = task_of(threadIdx.x);

  A given[kBack + 1][kColumns][kValues];  // by the row of windows that begins with the tile, and those before
  S::Row rows[kRows];
  Line lines[kRows];
  bool again = false;
#pragma unroll
  for (int step = -kBack; step < kSteps; ++step) {
    const int tile = task.first + step, top = tile * kStrideH - axis_h.before;
    if (step > 0 && top >= axis_h.extent) break;
#pragma unroll
    for (int r = step == -kBack ? 0 : kRows - kStrideH; r < kRows; ++r) {
      rows[r] = task.source.read(top + r);
      lines[r] = Line(rows[r]);
    }
    Line seen[kWindowH];
#pragma unroll
    for (int r = 0; r < kWindowH; ++r) seen[r] = lines[r];
    const unsigned odd = give(given[0], task, seen, tile);
    if (odd != 0) again |= task.holds(tile, odd);
#pragma unroll
    for (int i = 0; i < kStrideH && step >= 0; ++i) {
      if (static_cast<unsigned>(top + i) < static_cast<unsigned>(axis_h.extent)) put(task, rows[i], given, i, top + i);
    }
#pragma unroll
    for (int r = 0; r + kStrideH < kRows; ++r) rows[r] = rows[r + kStrideH], lines[r] = lines[r + kStrideH];
#pragma unroll
    for (int a = kBack; a > 0; --a)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int v = 0; v < kValues; ++v) given[a][c][v] = given[a - 1][c][v];
  }
  if (kScales && again) task_of(late_thread()).repair();
}
