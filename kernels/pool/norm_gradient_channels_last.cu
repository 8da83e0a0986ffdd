// Gradient of pooling by the L1 or L2 norm in channels-last memory, with windows of up to 3 x 3, in one pass: as in
// norm_gradient.cu, dx = x times the sum over the windows that cover an element of gradient / norm (L2), or sign(x)
// times the sum of gradients (L1).
//
// Layout:  a cell is what lies between the first element of a window and that of the next, in both directions. A thread
//          has kWide channels of one column of cells and walks down it: of each row of windows it computes gradient /
//          norm of the one that begins with its cell and hands it to the cells on the right through shared memory; what
//          it gives to rows below stays in registers. So each norm is computed once, but for those above and to the
//          left of what a block has.
// Needs:   pointers and channels aligned to kWide elements; dilation 1; a row of x and of grad below 2^31 elements; up
//          to 60 rows of cells for a block.
// Bound:   memory: x and grad read about once, dx written once.

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr int kExponent = 2;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 2;
  static constexpr int kWide = 8;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long inner;
  dnnarray::Divider lanes;
  dnnarray::Divider chunks;
  dnnarray::Divider tiles;
  dnnarray::Divider strips;
  int cells;
  int rows;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_norm_gradient_channels_last_default
#endif

using namespace dnnarray;
constexpr int kWide = Config::kWide, kThreads = Config::kThreads, kExponent = Config::kExponent;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;
constexpr bool kSquares = kExponent == 2;

// Rows and columns of windows over a cell but for its own; rows of x that a thread keeps from one row of windows to the
// next.
constexpr int kBack = (kWindowH - 1) / kStrideH, kAside = (kWindowW - 1) / kStrideW;
constexpr int kRows = kWindowH > kStrideH ? kWindowH : kStrideH, kKept = kRows - kStrideH;

struct Around : Config {
  static constexpr bool kLast = true, kMagnitude = false, kLends = false;
  static constexpr int kGroup = 1, kBefore = 0, kWindowW = ::kWindowW > ::kStrideW ? ::kWindowW : ::kStrideW;
};
using S = Strip<Around, false>;
using T = S::T;
using A = S::A;

// Whether a norm may need its elements scaled; if not, squares begin with what is nothing to any but leaves the inverse
// of a root finite.
constexpr bool kScales = kSquares && !kSquaresFit<T>;
constexpr A kLeast = kScales ? A(0) : A(1e-25);

// The slopes of one row of windows, by pieces of the threads' vectors; two rows, since some threads still read one when
// others write the next.
constexpr int kPiece = kWide * sizeof(A) <= 16 ? kWide : 16 / static_cast<int>(sizeof(A)), kPieces = kWide / kPiece;
__shared__ Vec<A, kPiece> smem_slopes[2][kPieces][kThreads];

struct Values {
  A at[kWide];
};

__device__ __forceinline__ void hand_over(const Values& slope, int buffer) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    Vec<A, kPiece> piece;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.at[k] = slope.at[i * kPiece + k];
    smem_slopes[buffer][i][threadIdx.x] = piece;
  }
}
__device__ __forceinline__ Values taken_from(int thread, int buffer) {
  Values slope;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const Vec<A, kPiece> piece = smem_slopes[buffer][i][thread];
#pragma unroll
    for (int k = 0; k < kPiece; ++k) slope.at[i * kPiece + k] = piece.at[k];
  }
  return slope;
}

// The sum of squares of what a row of x adds to the window.
__device__ __forceinline__ Values squares(const S::Row& row) {
  Values sum;
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
    sum.at[v] = kLeast;
#pragma unroll
    for (int s = 0; s < kWindowW; ++s) {
      const A x = S::N::widened(row.tap(v, s));
      sum.at[v] += x * x;
    }
  }
  return sum;
}

struct Task {
  S source;  // of the first column of the cells
  const T* grad;
  T* dx;
  Axis<false> h, w;
  int q, first, end;  // the column of windows; rows of cells
  bool active, own;   // whether there are such channels; whether the cells are this block's, too

  __device__ __forceinline__ bool there(int p) const {
    return active && static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs) &&
           static_cast<unsigned>(q) < static_cast<unsigned>(w.outputs);
  }
  __device__ __forceinline__ int top(int p) const { return p * kStrideH - h.before; }
  __device__ __forceinline__ S::Row row(int number) const { return source.read(active ? number : -1); }
  __device__ __forceinline__ const T* gradient(int p) const {
    return grad + static_cast<long long>(p) * (w.outputs * source.column);
  }
  __device__ __forceinline__ T* place(int row, int c) const {
    return dx + static_cast<long long>(row) * source.row + c * source.column;
  }

  // Whether window p holds anything but zeros where its sum has left the range; slopes of zeros are made 0.
  __device__ __forceinline__ bool look_again(Values& slope, const Values& sum, int p) const {
    unsigned odd = 0;
#pragma unroll
    for (int v = 0; v < kWide; ++v) {
      if (out_of_range(sum.at[v])) odd |= 1u << v;
      if (sum.at[v] == A(0)) slope.at[v] = A(0);
    }
    bool any = false;
#pragma unroll 1
    for (; odd != 0; odd &= odd - 1) any |= source.largest<kWindowH, kWindowW>(top(p), 0, __ffs(odd) - 1) != A(0);
    return any;
  }

  // Once more, a row of cells, with all norms of scaled elements; seldom done.
  __device__ __forceinline__ void repair(int p) const {
#pragma unroll 1
    for (int i = 0; i < kStrideH * kStrideW * kWide; ++i) {
      const int row = top(p) + i / (kStrideW * kWide), c = i / kWide % kStrideW, v = i % kWide;
      if (own && source.inside(row, c))
        place(row, c)[v] = narrow<T>(source.exact_slope<kWindowH, kWindowW>(grad, h, w, q, row, c, v));
    }
  }
};

// What is read for a row of windows: their gradients and the rows of x that none before has seen. It is asked for one
// row of windows ahead.
struct Fresh {
  S::Row rows[kStrideH];
  Packed<T, kWide> grad;

  __device__ __forceinline__ Fresh(const Task& task, int p) {
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) rows[r] = task.row(task.top(p) + kKept + r);
    grad.fill(T{});
    if (task.there(p)) grad.read(task.gradient(p));
  }
};

// What a window gives to its elements, to be multiplied by them; `lines` are of its rows. Whether its norms must be
// looked at again.
__device__ __forceinline__ bool slope_of(Values& slope, const Task& task, const Packed<T, kWide>& grad,
                                         const Values (&lines)[kRows], int p) {
#pragma unroll
  for (int v = 0; v < kWide; ++v) slope.at[v] = widen(grad.at(v));
  if (kExponent == 1 || !task.there(p)) return false;  // a window that does not exist may hold elements all the same
  bool leaves = false;
  Values sum = lines[0];
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) sum.at[v] += lines[r].at[v];
    if constexpr (kScales) leaves |= out_of_range(sum.at[v]);
    slope.at[v] *= near_inverse_root(sum.at[v]);
  }
  return leaves && task.look_again(slope, sum, p);
}

// Of blocks, fastest are the chunks of channels (`lanes` vectors), then the tiles along W (`cells` columns of cells)
// and H (`rows` of them); the threads of a block follow each other by vectors, then by columns.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const auto task_of = [&](unsigned tid) {
    const Split lane = a.lanes(tid), chunk = a.chunks(blockIdx.x), tile = a.tiles(chunk.quotient);
    const Split strip = a.strips(tile.quotient);
    const int vector = chunk.rest * a.lanes.divisor + lane.rest, beside = static_cast<int>(lane.quotient) - kAside;
    // The first cells that do not lie in the padding.
    const int first = strip.rest * a.rows + axis_h.before / kStrideH;
    const int q = tile.rest * a.cells + beside + axis_w.before / kStrideW;
    const int column = static_cast<int>(a.inner) * kWide, w = q * kStrideW - axis_w.before;
    const long long channel = static_cast<long long>(vector) * kWide, plane = strip.quotient;
    const long long to = (plane * axis_h.extent * axis_w.extent + w) * column + channel;
    const S source{x + to, axis_h.extent, axis_w.extent, axis_w.extent * column, column, w};
    const T* from = grad + (plane * axis_h.outputs * axis_w.outputs + q) * column + channel;
    const bool active = vector < a.inner && beside < a.cells;
    return Task{source, from, dx + to, axis_h, axis_w, q, first, first + a.rows, active, active && beside >= 0};
  };
  const Task task = task_of(threadIdx.x);

  Values given[kBack + 1][kStrideW];  // to columns, by the row of windows that begins with the cell, and those before
  S::Row seen[kRows];
  Values lines[kRows];
  unsigned long long again = 0;  // rows of windows some of whose norms have left the range
#pragma unroll
  for (int r = 0; r < kKept; ++r) {
    seen[r] = task.row(task.top(task.first - kBack) + r);
    if constexpr (kSquares) lines[r] = squares(seen[r]);
  }
  Fresh next(task, task.first - kBack);
#pragma unroll 1
  for (int p = task.first - kBack; p < task.end; ++p) {
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) {
      seen[kKept + r] = next.rows[r];
      if constexpr (kSquares) lines[kKept + r] = squares(next.rows[r]);
    }
    const Packed<T, kWide> grad = next.grad;
    if (p + 1 < task.end) next = Fresh(task, p + 1);
    Values slope[kAside + 1];
    const bool odd = slope_of(slope[0], task, grad, lines, p);
    hand_over(slope[0], p & 1);
    if constexpr (kScales) {
      if (__syncthreads_or(odd)) again |= 1ull << (p - task.first + kBack);
    } else {
      __syncthreads();
    }
#pragma unroll
    for (int i = 1; i <= kAside; ++i)
      slope[i] = taken_from(max(static_cast<int>(threadIdx.x) - i * a.lanes.divisor, 0), p & 1);
#pragma unroll
    for (int c = 0; c < kStrideW; ++c)
#pragma unroll
      for (int v = 0; v < kWide; ++v) {
        given[0][c].at[v] = c < kWindowW ? slope[0].at[v] : A(0);
#pragma unroll
        for (int a = 1; a <= kAside; ++a) {
          if (c + a * kStrideW < kWindowW) given[0][c].at[v] += slope[a].at[v];
        }
      }
#pragma unroll
    for (int i = 0; i < kStrideH; ++i)
#pragma unroll
      for (int c = 0; c < kStrideW; ++c) {
        const int row = task.top(p) + i;
        if (p < task.first || !task.own || !task.source.inside(row, c)) continue;
        A y[kWide];
#pragma unroll
        for (int v = 0; v < kWide; ++v) {
          y[v] = i < kWindowH ? given[0][c].at[v] : A(0);
#pragma unroll
          for (int a = 1; a <= kBack; ++a) {
            if (i + a * kStrideH < kWindowH) y[v] += given[a][c].at[v];
          }
          const A x = S::N::widened(seen[i].tap(v, c));
          y[v] *= kSquares ? x : sign(x);
        }
        store(task.place(row, c), narrow_all<T, kWide>(y));
      }
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      seen[r] = seen[r + kStrideH];
      if constexpr (kSquares) lines[r] = lines[r + kStrideH];
    }
#pragma unroll
    for (int a = kBack; a > 0; --a)
#pragma unroll
      for (int c = 0; c < kStrideW; ++c) given[a][c] = given[a - 1][c];
  }
  if (!kScales || again == 0) return;
  const Task late = task_of(late_thread());
#pragma unroll 1
  for (int p = late.first; p < late.end; ++p) {
    if ((again >> (p - late.first) & ((2ull << kBack) - 1)) != 0) late.repair(p);
  }
}
