// Means over small windows that move by one element, and their gradients, which are the same sums: of a mean the sum
// over each window is multiplied by the window's share, of a gradient each element of the window before it is summed.
//
// Layout:  channels-first: a thread owns kWide neighbouring columns, one vector, and fetches what stands to the left
//          and right of them one by one; channels-last: kWide neighbouring channels of kAcross columns. It walks down
//          kSteps rows, and asks for all rows of the input that they take before it uses one: no branch comes between,
//          behind which each would be waited for. Of each row that has come only the sums along it are kept.
// Needs:   pointers and channels aligned to kWide elements, or W, with results as wide as the input; kWide at least
//          kWindowW - 1; dilation 1; planes below 2^31.
// Bound:   memory: the input read about once (neighbouring strips meet in the caches), the result written once.

#include "dnnarray/core/overlap.cuh"
#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr bool kGradient = false;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kTop = 1;
  static constexpr int kWindowW = 3;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 8;
  static constexpr int kAcross = 2;
  static constexpr int kSteps = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  int in_height;
  int out_height;
  int in_width;
  int out_width;
  int after_h;
  int after_w;
  int padded;
};
#define DNNARRAY_ENTRY pool_stride_one_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr bool kLast = Config::kLast, kGradient = Config::kGradient;
constexpr int kWide = Config::kWide, kAcross = Config::kAcross, kSteps = Config::kSteps;
constexpr int kWindowH = Config::kWindowH, kWindowW = Config::kWindowW;

// A result is the sum over the input's rows from kTop above it and columns from kBefore to the left of it. Of a
// gradient, these are not the paddings of the windows.
constexpr int kTop = Config::kTop, kBefore = Config::kBefore, kAfter = kWindowW - 1 - kBefore;
constexpr int kAbove = kGradient ? kWindowH - 1 - kTop : kTop, kLeft = kGradient ? kAfter : kBefore;

constexpr int kOwn = kLast ? kAcross : kWide, kValues = kLast ? kWide : 1;  // columns of a thread, values of each
constexpr int kCells = kOwn + kWindowW - 1, kHalo = kWindowW - 1, kRows = kSteps + kWindowH - 1;
static_assert(kLast || kWide >= kHalo, "what stands beside a vector lies in the next one");

// What windows along an axis share: 1 / (the taps that count) of window i; `padding` elements come before the first.
template <int kWindow, int kPadding>
struct Shares {
  int begin, end;  // of what counts
  __device__ __forceinline__ Shares(int extent, int after, bool padded)
      : begin(padded ? -kPadding : 0), end(padded ? extent + after : extent) {}
  __device__ __forceinline__ A operator()(int i) const {
    const int start = i - kPadding;
    return share_of<kWindow, A>(min(start + kWindow, end) - max(start, begin));
  }
};

constexpr A kShare = A(1) / A(kWindowW);  // along a row, of a window that lies in it

// Whether a window that stands at column c of a vector may reach beyond the row; all rows are whole vectors.
__device__ constexpr bool may_be_cut(int c) {
  for (int v = 0; v < 2; ++v) {
    const int begin = c + v * kWide,
              rest = (v + 1) * kWide - c;  // columns before it in the first vectors, from it on in the last
    if ((begin >= 0 && begin < kLeft) || (rest > 0 && rest < kWindowW - kLeft)) return true;
  }
  return kLast;
}

// A row of the input as it comes.
struct Row {
  Packed<T, kWide> body[kLast ? kCells : 1];
  T halo[kLast || kHalo == 0 ? 1 : kHalo];

  // Value v of cell i; the cells begin kBefore to the left of the own columns.
  __device__ __forceinline__ A at(int i, int v) const {
    if constexpr (kLast) return widen(body[i].at(v));
    const int c = i - kBefore;
    return widen(c < 0 ? halo[i] : c < kWide ? body[0].at(c) : halo[i - kWide]);
  }
};

struct Source {
  const T* x;  // the first own column, in row 0
  int height, width, column, w;
  long long row;

  __device__ __forceinline__ Row read(const T* from, int h) const {
    const bool there = static_cast<unsigned>(h) < static_cast<unsigned>(height);
    Row r;
#pragma unroll
    for (int b = 0; b < (kLast ? kCells : 1); ++b) {
      r.body[b].fill(T{});
      if (there && (!kLast || static_cast<unsigned>(w + b - kBefore) < static_cast<unsigned>(width))) {
        r.body[b].read(from + (kLast ? b - kBefore : 0) * column);
      }
    }
#pragma unroll
    for (int i = 0; i < kHalo && !kLast; ++i) {
      const bool own = there && (i < kBefore ? w > 0 : w + kWide < width);
      r.halo[i] = under_way(own ? from[i < kBefore ? i - kBefore : kWide + i - kBefore] : T{});
    }
    return r;
  }
};

// The sums along a row, for each own column and value.
struct Line {
  A sum[kOwn][kValues];
  A share;  // of the row, in a gradient

  __device__ __forceinline__ Line() {}
  __device__ __forceinline__ Line(const Row& row, const A (&across)[kCells], A down) : share(down) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      A cell[kCells];
#pragma unroll
      for (int i = 0; i < kCells; ++i) {
        cell[i] = row.at(i, v);
        if constexpr (kGradient) cell[i] *= may_be_cut(i - kBefore) ? across[i] : kShare;
      }
#pragma unroll
      for (int o = 0; o < kOwn; ++o) sum[o][v] = over_window(cell, o);
    }
  }
  // Windows of three beside each other share a sum of two.
  static __device__ __forceinline__ A over_window(const A (&cell)[kCells], int o) {
    if constexpr (kWindowW == 3) {
      return o % 2 == 0 ? cell[o] + (cell[o + 1] + cell[o + 2]) : (cell[o] + cell[o + 1]) + cell[o + 2];
    }
    A all = cell[o];
#pragma unroll
    for (int s = 1; s < kWindowW; ++s) all += cell[o + s];
    return all;
  }
};

// The results in row `step` of the thread's.
__device__ __forceinline__ void results(A (&y)[kOwn][kValues], const Line (&lines)[kWindowH], int step,
                                        const A (&across)[kCells], A down) {
#pragma unroll
  for (int o = 0; o < kOwn; ++o)
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      const Line& first = lines[step % kWindowH];
      y[o][v] = kGradient ? first.sum[o][v] * first.share : first.sum[o][v];
#pragma unroll
      for (int r = 1; r < kWindowH; ++r) {
        const Line& line = lines[(step + r) % kWindowH];
        y[o][v] += kGradient ? line.sum[o][v] * line.share : line.sum[o][v];
      }
      if constexpr (!kGradient) y[o][v] *= (may_be_cut(o) ? across[o] : kShare) * down;
    }
}

// `total` counts threads, and `among` says how they share the work: Share in strip.cuh. Extents are those of the input
// and of the result; `after_h` and `after_w` are what windows count of the padding behind rows and columns.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kLast ? 4 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  begin_ahead();
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Share<Config> share(thread, a.among);
  const int column = share.column, q = share.group * kOwn, p = share.strip * kSteps;
  const int in_height = a.in_height, out_height = a.out_height, in_width = a.in_width, out_width = a.out_width;
  const int windows_height = kGradient ? out_height : in_height,
            windows_width = kGradient ? out_width : in_width;  // of what windows stand over
  x += (share.plane * in_height * in_width + q) * column + share.channel;
  y += ((share.plane * out_height + p) * out_width + q) * column + share.channel;
  if constexpr (kSteps == 1) take_after_previous_kernel(x);
  const Source source{x, in_height, in_width, column, q, static_cast<long long>(in_width) * column};

  Row rows[kRows];
  const T* from = x + (p - kTop) * source.row;
#pragma unroll
  for (int i = 0; i < kRows; ++i, from += source.row) rows[i] = source.read(from, p - kTop + i);

  const Shares<kWindowH, kAbove> down(windows_height, a.after_h, a.padded != 0);
  const Shares<kWindowW, kLeft> along(windows_width, a.after_w, a.padded != 0);
  A across[kCells];
#pragma unroll
  for (int i = 0; i < kCells; ++i) across[i] = along(q + (kGradient ? i - kBefore : i));

  Line lines[kWindowH];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    lines[i % kWindowH] = Line(rows[i], across, kGradient ? down(p - kTop + i) : A(0));
    const int step = i - (kWindowH - 1);
    if (step < 0) continue;
    A sums[kOwn][kValues];
    results(sums, lines, step, across, kGradient ? A(0) : down(p + step));
#pragma unroll
    for (int o = 0; o < (kLast ? kOwn : 1); ++o) {
      A values[kWide];
#pragma unroll
      for (int j = 0; j < kWide; ++j) values[j] = kLast ? sums[o][j] : sums[j][0];
      if (p + step < out_height && q + o < out_width) store(y + o * column, narrow_all<T, kWide>(values));
    }
    y += static_cast<long long>(out_width) * column;
  }
}
