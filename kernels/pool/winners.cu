// Gradient of maximum pooling with windows of up to 5 x 5 that follow each other without a gap, in one pass: dx = the sum over the windows that cover
// an element of their gradient, if their maximum stands here.
//
// The maximum of each window is sought as the largest Rank (winners.cuh), first along the rows, which windows above each other share, and then down the
// columns; or its place is given (kGiven). A window then adds its gradient to one of the sums that its thread has in shared memory.
// Layout:  channels-first: a thread owns kColumns columns, which are whole vectors; channels-last: kColumns columns of the channels in a word. It walks
//          down the rows of windows; with each it reads kStrideH rows of x, adds what these windows give to the rows under them, and writes the kStrideH
//          rows that no further window covers. The windows beside its own ones it looks at again, so that no thread waits for another. What the next row
//          of windows needs is on its way meanwhile (kEarly: from before the maxima are sought), and rows kAhead of that to the L2.
// Needs:   kColumns a multiple of kStrideW; channels-first: pointers and W aligned to kColumns elements or 16 bytes, grad to kPiece; channels-last: pointers
//          and channels to a word. Dilation 1, planes below 2^29, fewer than 500 rows in a strip; dynamic shared memory for the sums.
// Bound:   memory: grad and x (or the places) read about once, dx written once; sought, waiting for it: few threads fit, with the registers that they take.

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
};
#define DNNARRAY_ENTRY pool_winners_default
#endif

#include "dnnarray/winners_rows.cuh"

using namespace dnnarray;

// The sums of a thread, of which each is kValues of Config::kThreads.
struct Sums {
  char* own;
  int apart;  // bytes from one number to the next; not known to the compiler, so that an address is one product outside of the ALU pipe

  __device__ __forceinline__ float* of(int number) const { return reinterpret_cast<float*>(own + number * apart); }
  static __device__ __forceinline__ float& at(float* sums, int number, int v) { return sums[(number * kValues + v) * Config::kThreads]; }
  static __device__ __forceinline__ void clear(float* row) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int v = 0; v < kValues; ++v) at(row, mark_of_own(c), v) = 0;
  }
  // Those of a row, which begins anew.
  __device__ __forceinline__ void take(float (&sums)[kColumns][kValues], int first) const {
    float* const row = of(first);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int v = 0; v < kValues; ++v) sums[c][v] = at(row, mark_of_own(c), v);
    clear(row);
  }
};

// What a row of windows gives: their gradients, and the numbers of the elements that get them.
struct Gifts {
  float grad[kWindows][kValues];
  int numbers[kWindows][kValues];

  __device__ __forceinline__ explicit Gifts(const Said& said) {
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int i = b - kLeft;
      if constexpr (kLast) {
        widen_all(grad[b], said.sides[b]);
      } else if (i < 0 || i >= kOwn) {
        widen_all(grad[b], said.sides[i < 0 ? b : b - kOwn]);
      } else if (i % kPiece == 0) {
        float piece[kPiece];
        widen_all(piece, said.own[i / kPiece]);
#pragma unroll
        for (int k = 0; k < kPiece; ++k) grad[b + k][0] = piece[k];
      }
      if constexpr (kGiven) {
        const bool own = !kLast && i >= 0 && i < kOwn;
        const auto& named = said.side_places[kLast || i < 0 ? b : own ? 0 : b - kOwn];
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          numbers[b][v] = position(own ? said.own_places[own ? i / kPiece : 0].at[own ? i % kPiece : 0] : named.at[v]);
        }
      }
    }
  }
  static __device__ __forceinline__ int position(Saved saved) {
    const long long place = static_cast<long long>(saved);
    return place >> 31 == 0 ? static_cast<int>(place) : -1;
  }
  // What was read is taken out of its words now, so that the next row may come into the same registers; the compiler would copy them first.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        have(grad[b][v]);
        if constexpr (kGiven) have(numbers[b][v]);
      }
  }
  __device__ __forceinline__ void seek(Bests best, bool odd) {
    if constexpr (kHalves) {
      if (odd) {
#pragma unroll
        for (int b = 0; b < kWindows; ++b)
#pragma unroll
          for (int v = 0; v < kValues; ++v) best.of[b][v].turn_if_nan(0);
      }
    }
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) numbers[b][v] = best.of[b][v].where() % kRound;
  }
  // Positions in the plane to numbers; a place that is not in its window or not in an own column is nowhere. `h` and `row` are of the windows' first row,
  // w of the first own column.
  __device__ __forceinline__ void place(const Divider& by_width, int h, int row, int w) {
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const int named = numbers[b][v];
        const int quotient = static_cast<int>(__umulhi(static_cast<unsigned>(named), by_width.magic) >> by_width.shift);
        const int r = quotient - h, c = named - quotient * by_width.divisor - w;
        const bool in_row = static_cast<unsigned>(c - first_own(b)) < static_cast<unsigned>(owns(b));
        const bool seen = in_row && static_cast<unsigned>(r) < static_cast<unsigned>(kWindowH) && named >= 0;
        const int down = row - r * kMarks, number = (down < 0 ? down + kWindowH * kMarks : down) + mark_of_own(c);
        numbers[b][v] = seen ? number : 0;
      }
  }
  // Of the thread's columns, the first one in window b, and how many are.
  static __device__ constexpr int first_own(int b) { return b * kStrideW < kMargin ? 0 : b * kStrideW - kMargin; }
  static __device__ constexpr int owns(int b) {
    const int end = b * kStrideW + kWindowW - kMargin, last = end < kColumns ? end : kColumns;
    return last > first_own(b) ? last - first_own(b) : 0;
  }

  // Windows that do not overlap together; the order of each sum is fixed by where the element stands among the thread's columns.
  __device__ __forceinline__ void add(const Sums& sums) const {
    constexpr int kApart = (kWindowW + kStrideW - 1) / kStrideW;
    float* to[kWindows][kValues];
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) to[b][v] = sums.of(numbers[b][v]);
#pragma unroll
    for (int first = 0; first < kApart && first < kWindows; ++first) {
      float sum[(kWindows + kApart - 1) / kApart][kValues];
#pragma unroll
      for (int b = first; b < kWindows; b += kApart)
#pragma unroll
        for (int v = 0; v < kValues; ++v) sum[b / kApart][v] = Sums::at(to[b][v], 0, v) + grad[b][v];
#pragma unroll
      for (int b = first; b < kWindows; b += kApart)
#pragma unroll
        for (int v = 0; v < kValues; ++v) Sums::at(to[b][v], 0, v) = sum[b / kApart][v];
    }
  }
};

__device__ __forceinline__ void put(T* dx, const float (&sums)[kColumns][kValues], int count, int column) {
  if constexpr (kLast) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < count) store(beside(dx, column, c), narrow_all<T, kValues>(sums[c]));
    }
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; c += kVector) {
      float piece[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) piece[k] = sums[c + k < kColumns ? c + k : c][0];
      store(dx + c, narrow_all<T, kVector>(piece));
    }
  }
}

// Where a thread stands.
struct Walk {
  Source source;
  Sums sums;
  T* dx;                                             // row h
  int h, p, first, last, count;                      // rows of windows that are written, and columns
  unsigned place;                                    // of the row that is found next
  unsigned odd = 0;                                  // rows with places that are turned, as bits from h on
  Bests open[kRows > 1 && !kGiven ? kRows - 1 : 1];  // of the rows of windows from p on: over their rows up to the one that is found next
  Fetched next = {};

  __device__ __forceinline__ Bests found(const Ordered& line, int r) {
    Bests bests = {};
    if constexpr (!kGiven) odd |= static_cast<unsigned>(source.find(bests, line, h + r, place)) << r;
    place = next_row(place);
    return bests;
  }
  // The same with another row of x, number r from h on, which is in the row of windows p + j.
  static __device__ __forceinline__ Bests with(const Bests& open, const Bests& row, int r, int j) { return r == j * kStrideH ? row : open.before(row); }

  __device__ __forceinline__ void begin() {
    place = kTop;
#pragma unroll
    for (int r = 0; r < kWindowH; ++r) Sums::clear(sums.of(r * kMarks));
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      Line line = {};
      source.read(line, h + r);
      const Bests row = found(Ordered(line), r);
#pragma unroll
      for (int j = 0; j < kRows - 1 && !kGiven; ++j) {
        if (r >= j * kStrideH) open[j] = with(open[j], row, r, j);
      }
    }
    source.read(next, p, h + kKept);
  }
  // The maxima of the row of windows p, whose last rows of x are here now.
  __device__ __forceinline__ Bests closed(const Ordered (&lines)[kStrideH]) {
    Bests all[kRows];
#pragma unroll
    for (int j = 0; j < kRows - 1 && !kGiven; ++j) all[j] = open[j];
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) {
      const Bests row = found(lines[r - kKept], r);
#pragma unroll
      for (int j = 0; j < kRows && !kGiven; ++j) {
        if (r >= j * kStrideH) all[j] = with(all[j], row, r, j);
      }
    }
#pragma unroll
    for (int j = 1; j < kRows && !kGiven; ++j) open[j - 1] = all[j];
    return all[0];
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
    const bool gives = source.has_windows(p);  // otherwise what was read is of another row
    if (p < last) source.read(next, p + 1, h + kWindowH);
    if constexpr (Config::kEarly) bests = closed(lines);
    unsigned row = place;  // the sums of row h give way to those of row h + kWindowH
    if constexpr (kGiven) {
      gifts.place(by_width, h, row % kRound, source.q * kStrideW);
    } else {
      gifts.seek(bests, odd != 0);
    }
    if (gives) gifts.add(sums);
#pragma unroll
    for (int r = 0; r < kStrideH; ++r, ++h, dx += source.x_row, row = next_row(row)) {
      float own[kColumns][kValues];
      sums.take(own, row % kRound);
      if (p >= first && source.has_row(h)) put(dx, own, count, source.column);
    }
    odd >>= kStrideH;
    return p++ == last;
  }
};

// Arguments as in tiles.cu; `steps` rows of windows are a strip. What positions in the plane are divided by, the width, comes last.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, const T* __restrict__ gmem_x, const Saved* __restrict__ gmem_places, T* __restrict__ gmem_dx,
                   long long total, long long inner, long long by_inner, long long groups, long long by_group, long long strips, long long by_strip,
                   long long height, long long h_padding, long long width, long long w_padding, long long steps, long long by_width0,
                   long long by_width1) {
  extern __shared__ float smem_sums[];
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const Share<Config> share(thread, inner, by_inner, groups, by_group, strips, by_strip);
  const Axis<false> axis_h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> axis_w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const int q = share.group * kOwn, first = share.strip * static_cast<int>(steps), p = first - (kRows - 1), h = p * kStrideH - axis_h.before;
  Walk walk;
  Source& source = walk.source;
  source.height = axis_h.extent, source.width = axis_w.extent, source.outputs_h = axis_h.outputs, source.outputs_w = axis_w.outputs;
  source.q = q, source.column = share.column;
  if constexpr (kLast) have(source.column);
  source.inner = source.has_column(0) && source.has_column(kSeen - 1);
  source.inner_windows = source.has_window(0) && source.has_window(kWindows - 1);
  source.x_row = static_cast<long long>(axis_w.extent) * share.column, source.grad_row = static_cast<long long>(axis_w.outputs) * share.column;
  long long element = (share.plane * axis_h.extent + h) * source.x_row + static_cast<long long>(q) * kStrideW * share.column + share.channel;
  long long window = (share.plane * axis_h.outputs + p) * source.grad_row + static_cast<long long>(q) * share.column + share.channel;
  element -= kMoved * share.column, window -= kMoved * share.column;
  source.x = gmem_x + element, source.grad = gmem_grad + window, source.places = gmem_places + window;
  walk.sums.own = reinterpret_cast<char*>(smem_sums + threadIdx.x);
  walk.sums.apart = blockDim.x * kValues * static_cast<int>(sizeof(float));
  walk.dx = gmem_dx + element;
  walk.h = h, walk.p = p, walk.first = first, walk.count = axis_w.extent - q * kStrideW;
  walk.last = min(first + static_cast<int>(steps), (axis_h.extent + axis_h.before + kStrideH - 1) / kStrideH) - 1;
  walk.begin();
  const Divider by_width(by_width0, by_width1);
  while (!walk.step(by_width)) {
  }
}
