// Gradient of maximum pooling with windows of up to 5 x 5 that follow each other without a gap, in one pass: dx = the sum over the windows that cover
// an element of their gradient, if their maximum stands here.
//
// The maximum of each window is sought as the largest Rank (winners.cuh), first along the rows, which windows above each other share, and then down the
// columns; or its place is given (kGiven). A window then adds its gradient to one of the sums that its thread has in shared memory.
// Layout:  channels-first: a thread owns kColumns columns, which are whole vectors; channels-last: kColumns columns of the channels in a word. It walks
//          down the rows of windows; with each it reads kStrideH rows of x, adds what these windows give to the rows under them, and writes the kStrideH
//          rows that no further window covers. The windows beside its own ones it looks at again, so that no thread waits for another. What the next row
//          of windows needs is on its way meanwhile.
// Needs:   kColumns a multiple of kStrideW; channels-first: pointers and W aligned to kColumns elements or 16 bytes, grad to kPiece; channels-last: pointers
//          and channels to a word. Dilation 1, planes below 2^29, fewer than 1,000 rows in a strip; dynamic shared memory for the sums.
// Bound:   memory: grad and x (or the places) read about once, dx written once; sought in half types, the instructions that find the maxima.

#include "dnnarray/strip.cuh"
#include "dnnarray/winners.cuh"

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
};
#define DNNARRAY_ENTRY pool_winners_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Saved = Config::Saved;
constexpr bool kLast = Config::kLast, kGiven = Config::kGiven, kHalves = sizeof(T) == 2;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW, kStrideW = Config::kStrideW;
constexpr int kBefore = Config::kBefore, kColumns = Config::kColumns, kPiece = Config::kPiece;
constexpr int kPart = kHalves ? 2 : 1, kValues = kLast ? kPart : 1;  // elements of a word; channels of a thread
constexpr int kMost = 16 / sizeof(T), kVector = kLast ? kPart : kColumns < kMost ? kColumns : kMost;  // elements that are moved together

// Windows beside each other: those over the thread's columns, kLeft of which begin before its own ones. They look at kSeen columns, of which kMargin
// stand to the left of the thread's and kBeyond to the right.
constexpr int kOwn = kColumns / kStrideW, kLeft = (kWindowW - 1 - kBefore) / kStrideW, kRight = (kBefore + kStrideW - 1) / kStrideW;
constexpr int kWindows = kLeft + kOwn + kRight, kSeen = (kWindows - 1) * kStrideW + kWindowW;
constexpr int kMargin = kLeft * kStrideW + kBefore, kBeyond = kSeen - kMargin - kColumns;
constexpr int kRows = (kWindowH - 1) / kStrideH + 1, kKept = kWindowH - kStrideH;  // rows of windows over a row of x; rows that windows share
static_assert(kKept >= 0 && kWindowW >= kStrideW && kColumns % kStrideW == 0, "no gaps");

// The sums of kWindowH rows are in shared memory. An element has a number among them, which falls along the row and from row to row; rows take turns, so
// that the highest numbers follow after the lowest. A place is kRound times a count of turns, which falls too, and the number. So what comes first has the
// larger place.
constexpr int kRound = 128, kTop = 510 * kRound + (kWindowH - 1) * kSeen;
static_assert(kWindowH * kSeen <= kRound, "numbers of seven bits");
__device__ __forceinline__ int next_row(int place) { return place + (place % kRound == 0 ? (kWindowH - 1) * kSeen - kRound : -kSeen); }
__device__ constexpr int mark_of(int i) { return kSeen - 1 - i; }  // of what is seen of a row

// How words hold what is read of a row of x: in channels-first memory a piece to each side of the thread's vector, with the alignment of its size.
__device__ constexpr int padded(int n) { return n == 3 ? 4 : n; }
constexpr int kLeftPad = padded(kMargin), kRightPad = padded(kBeyond);
constexpr int kLeftWords = (kLeftPad + kPart - 1) / kPart, kRightWords = (kRightPad + kPart - 1) / kPart, kBodyWords = kColumns / kPart;
constexpr int kWords = kLast ? kSeen : kLeftWords + kBodyWords + kRightWords;
struct Cell {
  int word, part;
};
__device__ constexpr Cell cell_of(int i, int value) {
  if (kLast) return {i, value};
  const int c = i - kMargin, in = c < 0 ? kLeftPad + c : c < kColumns ? c : c - kColumns;
  return {in / kPart + (c < 0 ? 0 : c < kColumns ? kLeftWords : kLeftWords + kBodyWords), in % kPart};
}

template <int N>
__device__ __forceinline__ void read_words(unsigned* to, const T* from) {
  if constexpr (N > 0) {
    const auto words = load_wordwise<T, N>(from);
#pragma unroll
    for (int i = 0; i < Wordwise<T, N>::kWords; ++i) to[i] = words.at[i];
  }
}

struct Line {  // a row of x, as it was read
  unsigned at[kWords];
};
struct Said {  // what a row of windows says, as it was read
  Wordwise<T, kLast ? kValues : 1> sides[kLast ? kWindows : kLeft + kRight + 1];
  Wordwise<T, kPiece> own[kLast ? 1 : kOwn / kPiece];
  Vec<Saved, kLast ? kValues : 1> side_places[kGiven ? kLast ? kWindows : kLeft + kRight + 1 : 1];
  Vec<Saved, kPiece> own_places[kGiven && !kLast ? kOwn / kPiece : 1];
};
struct Fetched {
  Line x[kStrideH];
  Said windows;
};
struct Bests {  // of a row of x, over the columns of each window
  Rank<T> of[kWindows][kValues];
};

struct Source {
  const T* x;                                          // the first own column, in the row that is read next
  const T* grad;                                       // of the first own window, likewise
  const Saved* places;                                 // as grad
  long long x_row, grad_row;                           // elements from one row to the next
  int height, width, outputs_h, outputs_w, q, column;  // q is the first own window, and column the elements from one column to the next
  bool inner, inner_windows;                           // whether all columns that are seen exist, and all windows

  __device__ __forceinline__ bool has_column(int i) const {
    return static_cast<unsigned>(q * kStrideW + i - kMargin) < static_cast<unsigned>(width);
  }
  __device__ __forceinline__ bool has_row(int h) const { return static_cast<unsigned>(h) < static_cast<unsigned>(height); }
  __device__ __forceinline__ bool has_window(int b) const { return static_cast<unsigned>(q + b - kLeft) < static_cast<unsigned>(outputs_w); }
  // What stands so many columns from `from`: by a product of 32 bits.
  template <typename U>
  __device__ __forceinline__ const U* at(const U* from, int columns) const {
    return from + column * columns;
  }

  __device__ __forceinline__ void read(Line& line, int h) {
    const T* const from = x;
    x += x_row;
    if constexpr (kGiven) return;
    const bool there = has_row(h);
    if constexpr (kLast) {
      if (there && inner) {
#pragma unroll
        for (int i = 0; i < kSeen; ++i) read_words<kPart>(line.at + i, at(from, i - kMargin));
      } else {
#pragma unroll
        for (int i = 0; i < kSeen; ++i) {
          line.at[i] = 0;
          if (there && has_column(i)) read_words<kPart>(line.at + i, at(from, i - kMargin));
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) line.at[i] = 0;
      if (!there) return;
      if (kLeftPad > 0 && q > 0) read_words<kLeftPad>(line.at, from - kLeftPad);
#pragma unroll
      for (int c = 0; c < kColumns; c += kVector) read_words<kVector>(line.at + kLeftWords + c / kPart, from + c);
      if (kRightPad > 0 && q * kStrideW + kColumns < width) read_words<kRightPad>(line.at + kLeftWords + kBodyWords, from + kColumns);
    }
  }

  __device__ __forceinline__ void read(Said& said, int p) {
    const bool there = static_cast<unsigned>(p) < static_cast<unsigned>(outputs_h);
    if (kLast && there && inner_windows) {
#pragma unroll
      for (int b = 0; b < kWindows; ++b) fill(said, b, true);
    } else {
#pragma unroll
      for (int b = 0; b < kWindows; ++b) fill(said, b, there && has_window(b));
    }
    grad += grad_row;
    places += grad_row;
  }
  // Window b, or the piece that begins with it.
  __device__ __forceinline__ void fill(Said& said, int b, bool there) const {
    const int i = b - kLeft;
    if (!kLast && i >= 0 && i < kOwn) {
      if (i % kPiece == 0) {
        said.own[i / kPiece] = {};
        if (there) said.own[i / kPiece] = load_wordwise<T, kPiece>(at(grad, i));
        if constexpr (kGiven) fill(said.own_places[i / kPiece], i, there);
      }
    } else {
      const int n = kLast || i < 0 ? b : b - kOwn;
      said.sides[n] = {};
      if (there) said.sides[n] = load_wordwise<T, kLast ? kValues : 1>(at(grad, i));
      if constexpr (kGiven) fill(said.side_places[n], i, there);
    }
  }
  template <int N>
  __device__ __forceinline__ void fill(Vec<Saved, N>& named, int i, bool there) const {
#pragma unroll
    for (int k = 0; k < N; ++k) named.at[k] = static_cast<Saved>(-1);
    if (there) named = load_wide<Saved, N>(at(places, i));
  }
  __device__ __forceinline__ void read(Fetched& next, int p, int h) {
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) read(next.x[r], h + r);
    read(next.windows, p);
  }

  // The best of a row for each window; returns whether places of NaN are turned. `place` is the row's.
  __device__ __forceinline__ bool find(Bests& bests, const Line& line, int h, int place) const {
    unsigned words[kWords], special = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = ordered(line.at[i], T{});
      special = not_finite(line.at[i], special, T{});
    }
    if constexpr (!kLast) {
      const bool left = q > 0, right = q * kStrideW + kColumns < width;
#pragma unroll
      for (int i = 0; i < kLeftWords; ++i) words[i] = left ? words[i] : kLeastWord<T>;
#pragma unroll
      for (int i = kWords - kRightWords; i < kWords; ++i) words[i] = right ? words[i] : kLeastWord<T>;
    }
    Rank<T> ranks[kSeen][kValues];
#pragma unroll
    for (int i = 0; i < kSeen; ++i)
#pragma unroll
      for (int v = 0; v < kValues; ++v) ranks[i][v] = Rank<T>(words[cell_of(i, v).word], cell_of(i, v).part, kSeen - 1, i, place);
    const bool odd = (special & (kHalves ? 0x7fff7fffu : 0x7fffffffu)) != 0;  // an infinity or a NaN
    if (odd || !has_row(h) || (kLast && !inner)) {
#pragma unroll
      for (int i = 0; i < kSeen; ++i)
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          ranks[i][v].turn_if_nan(place);
          if (!has_row(h) || (kLast && !has_column(i))) ranks[i][v].drop();
        }
    }
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        bests.of[b][v] = ranks[b * kStrideW][v];
#pragma unroll
        for (int s = 1; s < kWindowW; ++s) bests.of[b][v] = bests.of[b][v].before(ranks[b * kStrideW + s][v]);
        bests.of[b][v].stand(place);
      }
    return odd;
  }
};

// The sums of a thread, of which each is kValues of Config::kThreads.
struct Sums {
  float* own;

  __device__ __forceinline__ float& at(int number, int v) const { return own[(number * kValues + v) * Config::kThreads]; }
  __device__ __forceinline__ void clear(int row) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int v = 0; v < kValues; ++v) at(row + mark_of(c + kMargin), v) = 0;
  }
  // Those of a row, which begins anew.
  __device__ __forceinline__ void take(float (&sums)[kColumns][kValues], int row) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int v = 0; v < kValues; ++v) sums[c][v] = at(row + mark_of(c + kMargin), v);
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
  __device__ __forceinline__ void seek(const Bests (&rows)[kWindowH], bool odd) {
    Rank<T> best[kWindows][kValues];
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        best[b][v] = rows[0].of[b][v];
#pragma unroll
        for (int r = 1; r < kWindowH; ++r) best[b][v] = best[b][v].before(rows[r].of[b][v]);
      }
    if constexpr (kHalves) {
      if (odd) {
#pragma unroll
        for (int b = 0; b < kWindows; ++b)
#pragma unroll
          for (int v = 0; v < kValues; ++v) best[b][v].turn_if_nan(0);
      }
    }
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) numbers[b][v] = best[b][v].where() % kRound;
  }
  // Positions in the plane to numbers; a place that is not in its window gets nothing. `h` and `row` are of the windows' first row, w of the first column.
  __device__ __forceinline__ void place(const Divider& by_width, int h, int row, int w) {
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const int named = numbers[b][v];
        const int quotient = static_cast<int>(__umulhi(static_cast<unsigned>(named), by_width.magic) >> by_width.shift);
        const int r = quotient - h, s = named - quotient * by_width.divisor - w - b * kStrideW;
        const bool seen = static_cast<unsigned>(r) < static_cast<unsigned>(kWindowH) && static_cast<unsigned>(s) < static_cast<unsigned>(kWindowW);
        const int down = row - r * kSeen, number = (down < 0 ? down + kWindowH * kSeen : down) + mark_of(b * kStrideW + s);
        numbers[b][v] = seen && named >= 0 ? number : 0;
        grad[b][v] = seen && named >= 0 ? grad[b][v] : 0;
      }
  }

  // Windows that do not overlap together; the order of each sum is fixed by where the element stands among the thread's columns.
  __device__ __forceinline__ void add(const Sums& sums) const {
    constexpr int kApart = (kWindowW + kStrideW - 1) / kStrideW;
#pragma unroll
    for (int first = 0; first < kApart && first < kWindows; ++first) {
      float sum[(kWindows + kApart - 1) / kApart][kValues];
#pragma unroll
      for (int b = first; b < kWindows; b += kApart)
#pragma unroll
        for (int v = 0; v < kValues; ++v) sum[b / kApart][v] = sums.at(numbers[b][v], v) + grad[b][v];
#pragma unroll
      for (int b = first; b < kWindows; b += kApart)
#pragma unroll
        for (int v = 0; v < kValues; ++v) sums.at(numbers[b][v], v) = sum[b / kApart][v];
    }
  }
};

__device__ __forceinline__ void put(T* dx, const float (&sums)[kColumns][kValues], int count, int column) {
  if constexpr (kLast) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (c < count) store(dx + column * c, narrow_all<T, kValues>(sums[c]));
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
  T* dx;                         // row h
  int h, p, first, last, count;  // rows of windows that are written, and columns
  int top, place;                // places of row h, and of the one that is found next
  unsigned odd = 0;              // rows with places that are turned, as bits from h on
  Bests bests[kWindowH];
  Fetched next = {};

  __device__ __forceinline__ void find(const Line& line, int r) {
    if constexpr (!kGiven) odd |= static_cast<unsigned>(source.find(bests[r], line, h + r, place)) << r;
    place = next_row(place);
  }
  __device__ __forceinline__ void begin() {
    top = place = kTop;
#pragma unroll
    for (int r = 0; r < kWindowH; ++r) sums.clear(r * kSeen);
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      Line line = {};
      source.read(line, h + r);
      find(line, r);
    }
    source.read(next, p, h + kKept);
  }

  // A row of windows; returns whether it was the last.
  __device__ __forceinline__ bool step(const Divider& by_width) {
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) find(next.x[r - kKept], r);
    Gifts gifts(next.windows);
    gifts.hold();
    if (p < last) source.read(next, p + 1, h + kWindowH);
    if constexpr (kGiven) {
      gifts.place(by_width, h, top % kRound, source.q * kStrideW - kMargin);
    } else {
      gifts.seek(bests, odd != 0);
    }
    gifts.add(sums);
#pragma unroll
    for (int r = 0; r < kStrideH; ++r, ++h, dx += source.x_row) {
      float own[kColumns][kValues];
      sums.take(own, top % kRound);
      top = next_row(top);
      if (p >= first && source.has_row(h)) put(dx, own, count, source.column);
    }
    odd >>= kStrideH;
    if constexpr (!kGiven) {
#pragma unroll
      for (int r = 0; r < kKept; ++r) bests[r] = bests[r + kStrideH];
    }
    return p++ == last;
  }
};

constexpr bool kAlone = !kHalves && !kGiven && kWindowH == 2;  // one block must do: more would cost spills

// Arguments as in tiles.cu; `steps` rows of windows are a strip. What positions in the plane are divided by, the width, comes last.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kAlone ? 1 : 0)
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
  source.inner = source.has_column(0) && source.has_column(kSeen - 1);
  source.inner_windows = source.has_window(0) && source.has_window(kWindows - 1);
  source.x_row = static_cast<long long>(axis_w.extent) * share.column, source.grad_row = static_cast<long long>(axis_w.outputs) * share.column;
  const long long element = (share.plane * axis_h.extent + h) * source.x_row + static_cast<long long>(q) * kStrideW * share.column + share.channel;
  const long long window = (share.plane * axis_h.outputs + p) * source.grad_row + static_cast<long long>(q) * share.column + share.channel;
  source.x = gmem_x + element, source.grad = gmem_grad + window, source.places = gmem_places + window;
  walk.sums.own = smem_sums + threadIdx.x;
  walk.dx = gmem_dx + element;
  walk.h = h, walk.p = p, walk.first = first, walk.count = axis_w.extent - q * kStrideW;
  walk.last = min(first + static_cast<int>(steps), (axis_h.extent + axis_h.before + kStrideH - 1) / kStrideH) - 1;
  walk.begin();
  const Divider by_width(by_width0, by_width1);
  while (!walk.step(by_width)) {
  }
}
