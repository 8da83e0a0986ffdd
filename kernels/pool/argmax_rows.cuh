// What a thread of the gradient of maxima sees: of a row of x, the elements that its windows look at, and of a row of
// windows, their gradients and what is known of their places. By the kernel's Config: kernels include it behind that.
#pragma once

#include "pool/strip.cuh"
#include "pool/argmax.cuh"
#include "dnnarray/ptx/opaque.cuh"

namespace dnnarray {

using T = Config::Element;
using Saved = Config::Saved;
constexpr bool kLast = Config::kLast, kGiven = Config::kGiven, kHalves = sizeof(T) == 2;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;
constexpr int kBefore = Config::kBefore, kColumns = Config::kColumns, kPiece = Config::kPiece;
constexpr int kPart = kHalves ? 2 : 1, kValues = kLast ? kPart : 1;  // elements of a word; channels of a thread
constexpr int kMost = 16 / sizeof(T), kVector = kLast              ? kPart
                                                : kColumns < kMost ? kColumns
                                                                   : kMost;  // elements that are moved together

// Windows beside each other: those over the thread's columns, kLeft of which begin before its own ones. They look at
// kSeen columns, of which kMargin stand to the left of the thread's and kBeyond to the right.
constexpr bool kShares = Config::
    kShares;  // windows beside the own ones are the neighbours', who give to the thread's columns what is theirs
constexpr int kOwn = kColumns / kStrideW, kLeft = kShares ? 0 : (kWindowW - 1 - kBefore) / kStrideW;
constexpr int kRight = kShares ? 0 : (kBefore + kStrideW - 1) / kStrideW;
constexpr int kWindows = kLeft + kOwn + kRight, kSeen = (kWindows - 1) * kStrideW + kWindowW;
constexpr int kMargin = kLeft * kStrideW + kBefore, kBeyond = kSeen - kMargin - kColumns;
constexpr int kRows = (kWindowH - 1) / kStrideH + 1,
              kKept = kWindowH - kStrideH;  // rows of windows over a row of x; rows that windows share
static_assert(kKept >= 0 && kWindowW >= kStrideW && kColumns % kStrideW == 0, "no gaps");

// The sums of kWindowH rows are in shared memory. An element has a number among them, which falls along the row and
// from row to row; rows take turns, so that the highest numbers follow after the lowest. A place is kRound times a
// count of turns, which falls too, and the number. So what comes first has the larger place. Of the columns to each
// side that are only looked at, it does not matter which has a maximum: they share a number, and those to the right
// have that of nowhere, 0.
//
// Where neighbours share, all sums of a row of the block lie in one line, from the last column to the first, so that
// the numbers of columns beside the own ones are those of the neighbours' sums.
constexpr int kAlong = Config::kThreads / kWarp;
static_assert(!kShares || kLast, "lanes are channels");
// Whether registers allow what the ends of a row have for themselves. One is which columns a warp has: the ends, where
// more is to be done, go to quarters of the multiprocessor that have the fewest of 7 or 14 warps.
constexpr bool kEnds = kSeen < 12;
__device__ __forceinline__ int group_of(int warp) {
  return !kEnds ? warp : warp + 3 < kAlong ? warp + 3 : warp + 3 - kAlong;
}
// Numbers of a row, `n` at the least, such that a column's number added to a row's first one carries out of no low
// byte.
__device__ constexpr int without_carry(int n) {
  for (bool fits = false; !fits; n += !fits) {
    fits = true;
    for (int r = 0; r < kWindowH; ++r) fits = fits && r * n % 256 + kSeen <= 256;
  }
  return n;
}
constexpr int kMarks = kShares ? without_carry((kAlong - 1) * kColumns + kSeen) : kColumns + (kGiven ? 1 : 2);
constexpr int kRound = !kShares                   ? 128
                       : kWindowH * kMarks <= 512 ? 512
                                                  : 1024,
              kTop = ((1 << 16) / kRound - 2) * kRound + (kWindowH - 1) * kMarks;
static_assert(kWindowH * kMarks <= kRound && kBeyond >= 0, "numbers that leave bits for the turns");
__device__ __forceinline__ unsigned next_row(unsigned place) {
  return place + (place % kRound == 0 ? (kWindowH - 1) * kMarks - kRound : -kMarks);
}
// Of column i of what is seen of a row; of the own column c.
__device__ constexpr int mark_of_own(int c) { return kShares ? kSeen - 1 - kMargin - c : kColumns - c; }
__device__ constexpr int mark_of(int i) {
  if (kShares) return i < kSeen ? kSeen - 1 - i : 0;
  return i < kMargin ? kMarks - 1 : i < kMargin + kColumns ? mark_of_own(i - kMargin) : 0;
}
// The lowest bytes of places are in words for three columns.
__device__ constexpr unsigned marks_of(int i) { return mark_of(i) | mark_of(i + 1) << 8 | mark_of(i + 2) << 16; }

// How words hold what is read of a row of x: in channels-first memory a piece to each side of the thread's vector, with
// the alignment of its size.
__device__ constexpr int padded(int n) { return n == 3 ? 4 : n; }
constexpr int kLeftPad = padded(kMargin), kRightPad = padded(kBeyond);
constexpr int kLeftWords = (kLeftPad + kPart - 1) / kPart, kRightWords = (kRightPad + kPart - 1) / kPart,
              kBodyWords = kColumns / kPart;
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
struct Ordered {                 // the same as integers in the order of the values
  unsigned at[kWords], special;  // what is not zero, but for the signs, if there is an infinity or a NaN

  Ordered() = default;
  __device__ __forceinline__ explicit Ordered(const Line& line) {
    special = 0;
#pragma unroll
    for (int i = 0; i < kWords && !kGiven; ++i) {
      at[i] = ordered(line.at[i], T{});
      special = not_finite(line.at[i], special, T{});
    }
  }
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int i = 0; i < kWords && !kGiven; ++i) opaque(at[i]);
    if constexpr (!kGiven) opaque(special);
  }
};
struct Said {  // what a row of windows says, as it was read
  Wordwise<T, kLast ? kValues : 1> sides[kLast ? kWindows : kLeft + kRight + 1];
  Wordwise<T, kPiece> own[kLast ? 1 : kOwn / kPiece];
  Vec<Saved, kLast ? kValues : 1> side_indices[kGiven ? kLast ? kWindows : kLeft + kRight + 1 : 1];
  Vec<Saved, kPiece> own_indices[kGiven && !kLast ? kOwn / kPiece : 1];
};
struct Fetched {
  Line x[kStrideH];
  Said windows;
};
struct Bests {  // of one or more rows of x, over the columns of each window
  Rank<T> of[kWindows][kValues];

  __device__ __forceinline__ Bests before(const Bests& later) const {
    Bests both;
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) both.of[b][v] = of[b][v].before(later.of[b][v]);
    return both;
  }
};

// What stands so many columns from `from`, which was moved kMoved columns to the left: so an address is a product with
// a constant that is no power of two, one instruction outside of the ALU pipe.
constexpr int kMoved = kLast ? 16 : 0;
template <typename U>
__device__ __forceinline__ U* beside(U* from, int column, int columns) {
  const long long bytes = static_cast<long long>(column) * ((columns + kMoved) * static_cast<int>(sizeof(U)));
  return reinterpret_cast<U*>(const_cast<char*>(reinterpret_cast<const char*>(from)) + bytes);
}

struct Source {
  const T* x;                 // the first own column, in the row that is read next
  const T* grad;              // of the first own window, likewise
  const Saved* indices;       // as grad
  long long x_row, grad_row;  // elements from one row to the next
  int height, width, outputs_h, outputs_w, q,
      column;                 // q is the first own window, and column the elements from one column to the next
  bool inner, inner_windows;  // whether all columns that are seen exist, and all windows

  __device__ __forceinline__ bool has_column(int i) const {
    return static_cast<unsigned>(q * kStrideW + i - kMargin) < static_cast<unsigned>(width);
  }
  __device__ __forceinline__ bool has_row(int h) const {
    return static_cast<unsigned>(h) < static_cast<unsigned>(height);
  }
  __device__ __forceinline__ bool has_windows(int p) const {
    return static_cast<unsigned>(p) < static_cast<unsigned>(outputs_h);
  }
  __device__ __forceinline__ bool has_window(int b) const {
    return static_cast<unsigned>(q + b - kLeft) < static_cast<unsigned>(outputs_w);
  }
  template <typename U>
  __device__ __forceinline__ const U* at(const U* from, int columns) const {
    return beside(from, column, columns);
  }

  // Columns beside the plane are never read, and rows above and below leave what was read last.
  __device__ __forceinline__ void read(Line& line, int h) {
    if constexpr (kGiven) return;
    const T* const from = x;
    x += x_row;
    if (Config::kAhead > 0 && h + Config::kAhead < height) fetch(from + Config::kAhead * x_row);
    if (!has_row(h)) return;
    if constexpr (kLast) {
#pragma unroll
      for (int i = 0; i < kSeen; ++i) {
        if (inner || has_column(i)) read_words<kPart>(line.at + i, at(from, i - kMargin));
      }
    } else {
      if (kLeftPad > 0 && q > 0) read_words<kLeftPad>(line.at, from - kLeftPad);
#pragma unroll
      for (int c = 0; c < kColumns; c += kVector) read_words<kVector>(line.at + kLeftWords + c / kPart, from + c);
      if (kRightPad > 0 && q * kStrideW + kColumns < width)
        read_words<kRightPad>(line.at + kLeftWords + kBodyWords, from + kColumns);
    }
  }

  // The own columns of a row of x to the L2; in channels-last memory a line by each lane, as the lanes are neighbouring
  // channels.
  __device__ __forceinline__ void fetch(const T* row) const {
    const int c = kLast ? threadIdx.x % 32 : 0;
    if (c < kColumns && has_column(c + kMargin)) prefetch_l2(beside(row, column, c));
  }
  // The same of a row of windows.
  __device__ __forceinline__ void fetch(const T* row, const Saved* row_places) const {
    const int b = kLast ? threadIdx.x % 32 : 0;
    if (b >= kOwn || !has_window(b + kLeft)) return;
    prefetch_l2(beside(row, column, b));
    if constexpr (kGiven) prefetch_l2(beside(row_places, column, b));
  }

  // Windows beside the plane are never read and stay zero; rows of them above and below leave what was read last.
  __device__ __forceinline__ void read(Said& said, int p) {
    if (Config::kAhead > 0 && p + Config::kAhead < outputs_h)
      fetch(grad + Config::kAhead * grad_row, indices + Config::kAhead * grad_row);
    if (has_windows(p)) {
#pragma unroll
      for (int b = 0; b < kWindows; ++b) {
        if (inner_windows || has_window(b)) fill(said, b);
      }
    }
    grad += grad_row;
    indices += grad_row;
  }
  // Window b, or the piece that begins with it.
  __device__ __forceinline__ void fill(Said& said, int b) const {
    const int i = b - kLeft;
    if (!kLast && i >= 0 && i < kOwn) {
      if (i % kPiece != 0) return;
      said.own[i / kPiece] = load_wordwise<T, kPiece>(at(grad, i));
      if constexpr (kGiven) said.own_indices[i / kPiece] = load_wide<Saved, kPiece>(at(indices, i));
    } else {
      const int n = kLast || i < 0 ? b : b - kOwn;
      said.sides[n] = load_wordwise<T, kLast ? kValues : 1>(at(grad, i));
      if constexpr (kGiven) said.side_indices[n] = load_wide<Saved, kLast ? kValues : 1>(at(indices, i));
    }
  }
  __device__ __forceinline__ void read(Fetched& next, int p, int h) {
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) read(next.x[r], h + r);
    read(next.windows, p);
  }

  // Of the columns from one to another, those that are not there.
  __device__ __forceinline__ void drop_outside(Rank<T> (&ranks)[kSeen][kValues], int from, int to) const {
#pragma unroll
    for (int i = from; i < to; ++i) {
      const bool here = has_column(i);
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        if (!here) ranks[i][v].drop();
      }
    }
  }
  // The best of a row for each window; returns whether places of NaN are turned. `place` is the row's.
  __device__ __forceinline__ bool find(Bests& bests, const Ordered& line, int h, unsigned place) const {
    unsigned words[kWords], special = line.special;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = line.at[i];
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
      for (int v = 0; v < kValues; ++v)
        ranks[i][v] = Rank<T>(words[cell_of(i, v).word], cell_of(i, v).part, marks_of(i - i % 3), i % 3, place);
    const bool odd = (special & (kHalves ? 0x7fff7fffu : 0x7fffffffu)) != 0;  // an infinity or a NaN
    if (odd || !has_row(h) || (kLast && !inner && !kEnds)) {
#pragma unroll
      for (int i = 0; i < kSeen; ++i)
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          ranks[i][v].turn_if_nan(place);
          if (!has_row(h) || (kLast && !has_column(i))) ranks[i][v].drop();
        }
    } else if (kLast && !inner && kEnds) {
      drop_outside(ranks, 0, kMargin);
      drop_outside(ranks, kMargin + kColumns, kSeen);
      if (!has_column(kMargin) || !has_column(kMargin + kColumns - 1)) drop_outside(ranks, kMargin, kMargin + kColumns);
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

}  // namespace dnnarray
