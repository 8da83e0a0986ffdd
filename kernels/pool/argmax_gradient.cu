// Gradient of maximum pooling with windows of up to 5 x 5 that follow each other without a gap, in one pass: dx = the
// sum over the windows that cover an element of their gradient, if their maximum stands here.
//
// The maximum of each window is sought as the largest Rank (argmax.cuh), first along the rows, which windows above each
// other share, and then down the columns; or its place is given (kGiven). A window then adds its gradient to one of the
// sums that its thread has in shared memory.
// Layout:  channels-first: a thread owns kColumns columns, which are whole vectors; channels-last: kColumns columns of
//          the channels in a word. It walks down the rows of windows; with each it reads kStrideH rows of x, adds what
//          these windows give to the rows under them, and writes the kStrideH rows that no further window covers. The
//          windows beside its own ones it looks at again, so that no thread waits for another. What the next row of
//          windows needs is on its way meanwhile (kEarly: from before the maxima are sought), and rows kAhead of that
//          to the L2.
// Needs:   kColumns a multiple of kStrideW; channels-first: pointers and W aligned to kColumns elements or 16 bytes,
//          grad to kPiece; channels-last: pointers and channels to a word. Dilation 1, planes below 2^29, fewer than
//          500 rows in a strip; dynamic shared memory for the sums.
// Bound:   memory: grad and x (or the places) read about once, dx written once; sought, waiting for it: few threads
//          fit, with the registers that they take.

#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Saved = long long;
  static constexpr bool kGiven = false;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 1;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 1;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 8;
  static constexpr int kColumns = 8;
  static constexpr int kPiece = 8;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 0;
  static constexpr int kAhead = 0;
  static constexpr bool kEarly = false;
  static constexpr bool kShares = false;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
  int steps;
  dnnarray::Divider width;
};
#define DNNARRAY_ENTRY pool_argmax_gradient_default
#endif

#include "pool/argmax_walk.cuh"

using namespace dnnarray;

// A thread's walk with what is on its way to it.
struct Reading : Walk {
  Fetched next = {};

  using Walk::Walk;
  __device__ __forceinline__ void begin() {
    Walk::begin();
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      Line line = {};
      source.read(line, h + r);
      opened(Ordered(line), r);
    }
    source.read(next, p, h + kKept);
  }
  // A row of windows; returns whether it was the last.
  __device__ __forceinline__ bool step(const Divider& by_width) {
    Ordered lines[kStrideH];
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) lines[r] = Ordered(next.x[r]);
    Bests bests;
    if constexpr (!Config::kEarly) bests = closed(lines);
    Gifts gifts(next.windows);
    gifts.hold();
    if constexpr (Config::kEarly) {
#pragma unroll
      for (int r = 0; r < kStrideH; ++r) lines[r].hold();
    }
    const bool gives = source.has_windows(p);
    if (p < last) source.read(next, p + 1, h + kWindowH);
    if constexpr (Config::kEarly) bests = closed(lines);
    give(gifts, bests, gives, by_width);
    return finish();
  }
};

// Arguments as in small_windows_gradient.cu; `steps` rows of windows are a strip, and positions in the plane are
// divided by its `width`.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const Saved* __restrict__ indices,
                   T* __restrict__ dx, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char smem[];
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= a.total) return;
  const Share<Config> share(thread, a.among);
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const int q = share.group * kOwn, first = share.strip * a.steps, p = first - (kRows - 1),
            h = p * kStrideH - axis_h.before;
  Reading walk(smem);
  Source& source = walk.source;
  source.height = axis_h.extent, source.width = axis_w.extent, source.outputs_h = axis_h.outputs,
  source.outputs_w = axis_w.outputs;
  source.q = q, source.column = share.column;
  if constexpr (kLast) opaque(source.column);
  source.inner = source.has_column(0) && source.has_column(kSeen - 1);
  source.inner_windows = source.has_window(0) && source.has_window(kWindows - 1);
  source.x_row = static_cast<long long>(axis_w.extent) * share.column,
  source.grad_row = static_cast<long long>(axis_w.outputs) * share.column;
  long long element = (share.plane * axis_h.extent + h) * source.x_row +
                      static_cast<long long>(q) * kStrideW * share.column + share.channel;
  long long window =
      (share.plane * axis_h.outputs + p) * source.grad_row + static_cast<long long>(q) * share.column + share.channel;
  element -= kMoved * share.column, window -= kMoved * share.column;
  source.x = x + element, source.grad = grad + window, source.indices = indices + window;
  walk.dx = dx + element;
  walk.h = h, walk.p = p, walk.first = first, walk.count = axis_w.extent - q * kStrideW;
  walk.last = min(first + a.steps, (axis_h.extent + axis_h.before + kStrideH - 1) / kStrideH) - 1;
  walk.begin();
  const Divider by_width = a.width;
  while (!walk.step(by_width)) {}
}
