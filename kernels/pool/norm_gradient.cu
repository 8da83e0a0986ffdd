// Gradient of pooling by the L1 or L2 norm in channels-first memory, with windows of up to 3 x 3, in one pass: dx = the
// sum over the windows that cover an element of their gradient times sign(x) (L1) or x / norm (L2), which are x times
// the sum of gradient / norm.
//
// Layout:  as in small_windows_gradient.cu: a thread owns kGroup x kStrideW columns and walks down kSteps rows of
//          tiles. It reads all windows that meet its columns, and begins with the rows of windows above its first tile,
//          so that each norm is computed anew by the few threads that need it and never stored. kAtOnce: it asks for
//          all rows before it uses one, without a branch between, behind which each would be waited for.
//          (Channels-last: norm_gradient_channels_last.cu.)
// Needs:   pointers and W aligned to kWide elements, grad to kPiece; dilation 1; planes below 2^31.
// Bound:   memory: x and grad read about once, dx written once.

#include "pool/left_pair.cuh"

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
  static constexpr int kSteps = 2;
  static constexpr int kThreads = 128;
  static constexpr int kExponent = 2;
  static constexpr bool kAtOnce = true;
  static constexpr int kBlocks = 4;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_norm_gradient_default
#endif

using namespace dnnarray;
constexpr int kWide = Config::kWide, kPiece = Config::kPiece, kSteps = Config::kSteps, kExponent = Config::kExponent;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;

// Rows of windows over a tile but for the first; windows that meet the thread's own columns, of which the first begins
// kLeft columns before these.
constexpr int kBack = (kWindowH - 1) / kStrideH, kOwn = Config::kGroup, kColumns = kOwn * kStrideW;
constexpr int kWindowsLeft = (kWindowW - 1 - Config::kBefore) / kStrideW,
              kWindowsRight = (Config::kBefore + kStrideW - 1) / kStrideW;
constexpr int kWindows = kWindowsLeft + kOwn + kWindowsRight, kLeft = kWindowsLeft * kStrideW + Config::kBefore;
constexpr int kEnd = (kWindows - 1) * kStrideW + kWindowW - kLeft, kRight = kEnd > kColumns ? kEnd - kColumns : 0;
constexpr int kRows = kWindowH > kStrideH ? kWindowH : kStrideH, kAll = kRows + (kBack + kSteps - 1) * kStrideH;

// What a thread reads of a row is one window that holds all of these.
struct Around : Config {
  static constexpr bool kMagnitude = false, kLends = false;
  static constexpr int kBefore = kLeft, kWindowW = kLeft + kRight + ::kStrideW;
};
using S = Strip<Around, false>;
using T = S::T;
using A = S::A;

// Whether a norm may need its elements scaled.
constexpr bool kScales = kExponent == 2 && !kSquaresFit<T>;

// A bit for each norm.
template <bool kMany>
struct BitsOf {
  using type = unsigned;
};
template <>
struct BitsOf<true> {
  using type = unsigned long long;
};
using Bits = BitsOf<kScales && (kWindows * (kBack + kSteps) > 32)>::type;
static_assert(kWindows <= 32 && (!kScales || kWindows * (kBack + kSteps) <= 64), "a bit for each norm");

// Whether the two halves that stand to the left of a vector come as a word.
constexpr bool kByWords = kLeftPair<S>;

// (The loads of float16 the compiler takes apart again, which is slower than one row at a time.)
constexpr bool kAtOnce = Config::kAtOnce;

// Blocks of a multiprocessor that registers are kept for; eight cost spills elsewhere.
constexpr int kBlocks = Config::kBlocks == 8 && __CUDA_ARCH__ != 900 ? 4 : Config::kBlocks;

// Whether sums begin with 0. In float32 those that do not take fewer instructions but longer (133 us for 126).
constexpr bool kFromZero = sizeof(T) > 2;

__device__ __forceinline__ A element(const S::Row& row, int c) {
  return S::N::widened(row.cell(S::cell_of(0, c + kLeft)));
}

// A row of x.
__device__ __forceinline__ S::Row read_row(const S& source, int h) {
  if constexpr (kByWords) {
    return read_with_left_pair(source, h);
  } else {
    return source.read(h);
  }
}

// The sums of squares of what a row of x adds to each window.
struct Line {
  A sum[kWindows];

  __device__ __forceinline__ Line() {}
  __device__ __forceinline__ explicit Line(const S::Row& row) {
#pragma unroll
    for (int b = 0; b < kWindows && kExponent == 2; ++b) {
      sum[b] = A(0);
#pragma unroll
      for (int s = 0; s < kWindowW; ++s) {
        const A x = element(row, b * kStrideW - kLeft + s);
        sum[b] += x * x;
      }
    }
  }
};

// A single half has no word to stay in (under_way).
template <typename P>
__device__ __forceinline__ void hold(P& piece) {
  if constexpr (kAtOnce && sizeof(T) == 2 && P::kPart == 1) piece.v.at[0] = under_way(piece.v.at[0]);
}

// What a row of windows says, as it was read.
struct Said {
  Packed<T, kPiece> own[kOwn / kPiece];
  T sides[kWindows > kOwn ? kWindows - kOwn : 1];

  __device__ __forceinline__ A at(int b) const {
    const int i = b - kWindowsLeft;
    return widen(i < 0 ? sides[b] : i < kOwn ? own[i / kPiece].at(i % kPiece) : sides[b - kOwn]);
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
    return static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs) &&
           static_cast<unsigned>(q + b - kWindowsLeft) < static_cast<unsigned>(w.outputs);
  }

  // Of windows that do not exist, 0.
  __device__ __forceinline__ Said read(int p) const {
    const T* from = grad + static_cast<long long>(p) * w.outputs - kWindowsLeft;
    Said said;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int i = b - kWindowsLeft;
      if (i < 0 || i >= kOwn) {
        const T side = there(p, b) ? from[b] : T{};
        said.sides[i < 0 ? b : b - kOwn] = kAtOnce ? under_way(side) : side;
      } else if (i % kPiece == 0) {
        said.own[i / kPiece].fill(T{});
        if (there(p, b)) said.own[i / kPiece].read(from + b);
        hold(said.own[i / kPiece]);
      }
    }
    return said;
  }

  // Whether one of these windows of row p, given as bits, does hold anything but zeros.
  __device__ __forceinline__ bool holds(int p, unsigned windows) const {
    bool any = false;
#pragma unroll 1
    for (; windows != 0; windows &= windows - 1) {
      any |= source.largest<kWindowH, kWindowW>(p * kStrideH - h.before, (__ffs(windows) - 1) * kStrideW - kLeft, 0) !=
             A(0);
    }
    return any;
  }

  // Once more, all that the thread has written, with all norms of scaled elements; seldom done.
  __device__ __forceinline__ void repair() const {
    const int top = max(first * kStrideH - h.before, 0), end = min((first + kSteps) * kStrideH - h.before, h.extent);
#pragma unroll 1
    for (int row = top; row < end; ++row)
#pragma unroll 1
      for (int c = 0; c < count; ++c) {
        dx[static_cast<long long>(row) * source.row + c] =
            narrow<T>(source.exact_slope<kWindowH, kWindowW>(grad, h, w, q, row, c, 0));
      }
  }
};

__device__ __forceinline__ A squares(const Line (&lines)[kWindowH], int b) {
  A sum = lines[0].sum[b];
#pragma unroll
  for (int r = 1; r < kWindowH; ++r) sum += lines[r].sum[b];
  return sum;
}

// What the windows of row p give to the thread's columns, each sum to be multiplied by the element; `lines` are of
// their rows of x. Bits tell where a norm may have left the range.
__device__ __forceinline__ unsigned give(A (&given)[kColumns], const Task& task, const Said& said,
                                         const Line (&lines)[kWindowH], int p) {
  A slope[kWindows];
  unsigned odd = 0;
#pragma unroll
  for (int b = 0; b < kWindows && !kAtOnce; ++b) slope[b] = said.at(b);
#pragma unroll
  for (int b = 0; b < kWindows; ++b) {
    if constexpr (kAtOnce) slope[b] = said.at(b);  // when it is used: it has been under way for long
    if constexpr (kExponent != 2) continue;
    const bool there = task.there(p, b);  // others may hold elements all the same, whose norm is not to be seen
    const A sum = squares(lines, b);
    if (kScales && there && out_of_range(sum)) odd |= 1u << b;
    slope[b] = !there || sum == A(0) ? A(0) : slope[b] * near_inverse_root(sum);
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    given[c] = A(0);
    bool begun = kFromZero;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int s = c + kLeft - b * kStrideW;
      if (s >= 0 && s < kWindowW) given[c] = begun ? given[c] + slope[b] : slope[b], begun = true;
    }
  }
  return odd;
}

// Row i of a tile.
__device__ __forceinline__ void put(const Task& task, const S::Row& x, const A (&given)[kBack + 1][kColumns], int i,
                                    int row) {
#pragma unroll
  for (int c = 0; c < kColumns; c += kWide) {
    A y[kWide];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      A sum = 0;
      bool begun = kFromZero;
#pragma unroll
      for (int a = kBack; a >= 0; --a) {
        if (i + a * kStrideH < kWindowH) sum = begun ? sum + given[a][c + j] : given[a][c + j], begun = true;
      }
      y[j] = sum * (kExponent == 2 ? element(x, c + j) : sign(element(x, c + j)));
    }
    if (c < task.count) store(task.dx + static_cast<long long>(row) * task.source.row + c, narrow_all<T, kWide>(y));
  }
}

// Arguments as in small_windows.cu; threads are shared out over the elements of x.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const auto task_of = [&](unsigned tid) {
    const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + tid;
    const Share<Config> share(thread, a.among);
    const int q = share.group * kOwn, count = axis_w.extent - q * kStrideW;
    const long long to = share.plane * axis_h.extent * axis_w.extent + q * kStrideW;
    const long long from = share.plane * axis_h.outputs * axis_w.outputs + q;
    const S source{x + to, axis_h.extent, axis_w.extent, axis_w.extent, 1, q * kStrideW};
    return Task{source, grad + from, dx + to, axis_h, axis_w, q, share.strip * kSteps, min(count, kColumns)};
  };
  if (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x >= a.total) return;
  const Task task = task_of(threadIdx.x);

  S::Row rows[kAll];
  Said said[kBack + kSteps];
  const int above = task.first - kBack, highest = above * kStrideH - axis_h.before;
#pragma unroll
  for (int i = 0; i < kAll && kAtOnce; ++i) rows[i] = read_row(task.source, highest + i);
#pragma unroll
  for (int i = 0; i < kBack + kSteps && kAtOnce; ++i) said[i] = task.read(above + i);

  A given[kBack + 1][kColumns];  // by the row of windows that begins with the tile, and those before
  Line lines[kWindowH];
  Bits odd = 0;
#pragma unroll
  for (int i = 0; i < kBack + kSteps; ++i) {
    const int tile = above + i, top = kAtOnce ? highest + i * kStrideH : tile * kStrideH - axis_h.before;
    if (!kAtOnce && i > kBack && top >= axis_h.extent) break;
#pragma unroll
    for (int r = i == 0 ? 0 : kRows - kStrideH; r < kRows; ++r) {
      if (!kAtOnce) rows[i * kStrideH + r] = read_row(task.source, top + r);
      if (r < kWindowH) lines[r] = Line(rows[i * kStrideH + r]);
    }
    if (!kAtOnce) said[i] = task.read(tile);
    odd |= static_cast<Bits>(give(given[0], task, said[i], lines, tile))
           << i * kWindows % (8 * static_cast<int>(sizeof(Bits)));
#pragma unroll
    for (int r = 0; r < kStrideH && i >= kBack; ++r) {
      if (static_cast<unsigned>(top + r) < static_cast<unsigned>(axis_h.extent))
        put(task, rows[i * kStrideH + r], given, r, top + r);
    }
#pragma unroll
    for (int r = 0; r + kStrideH < kWindowH; ++r) lines[r] = lines[r + kStrideH];
#pragma unroll
    for (int a = kBack; a > 0; --a)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) given[a][c] = given[a - 1][c];
  }
  if (kScales && odd != 0) {
    const Task late = task_of(late_thread());
    bool again = false;
#pragma unroll 1
    for (int i = 0; i < kBack + kSteps; ++i, odd >>= kWindows)
      again |= late.holds(late.first - kBack + i, static_cast<unsigned>(odd & ((Bits(1) << kWindows) - 1)));
    if (again) late.repair();
  }
}
