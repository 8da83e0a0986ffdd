// How a thread of the gradient of maxima walks down its strip: the sums that it has in shared memory, what a row of
// windows gives them, and the rows that are complete, which are written. By the kernel's Config, like argmax_rows.cuh;
// how rows are read is the kernel's affair.
#pragma once

#include "pool/argmax_rows.cuh"

namespace dnnarray {

// The sums of a thread: kValues of each number, as far apart as there are threads that have that number's sum to
// themselves, so that lanes meet in no bank.
struct Sums {
  static constexpr int kApart = kShares ? kWarp : Config::kThreads;
  char* all;
  int own,
      // bytes to the thread's own, and from one number to the next; not known to the compiler, so that an address is
      // one product
      apart;

  __device__ __forceinline__ explicit Sums(char* smem) : all(smem) {
    const int thread = threadIdx.x, lane = kShares ? thread % kWarp : thread;
    own = lane * static_cast<int>(sizeof(float));
    apart = (kShares ? kWarp : blockDim.x) * kValues * static_cast<int>(sizeof(float));
    if constexpr (kShares) {
      opaque(apart);
      own += (kAlong - 1 - group_of(thread / kWarp)) * kColumns * apart;
      opaque(own);
    }
  }
  __device__ __forceinline__ float* of(int number) const {
    return reinterpret_cast<float*>(all + (own + number * apart));
  }
  static __device__ __forceinline__ float& at(float* sums, int number, int v) {
    return sums[(number * kValues + v) * kApart];
  }
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
        const auto& named = said.side_indices[kLast || i < 0 ? b : own ? 0 : b - kOwn];
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          numbers[b][v] = position(own ? said.own_indices[own ? i / kPiece : 0].at[own ? i % kPiece : 0] : named.at[v]);
        }
      }
    }
  }
  static __device__ __forceinline__ int position(Saved saved) {
    const long long place = static_cast<long long>(saved);
    return place >> 31 == 0 ? static_cast<int>(place) : -1;
  }
  // What was read is taken out of its words now, so that the next row may come into the same registers; the compiler
  // would copy them first.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        opaque(grad[b][v]);
        if constexpr (kGiven) opaque(numbers[b][v]);
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
  // Positions in the plane to numbers; a place that is not in its window or not in an own column is nowhere. `h` and
  // `row` are of the windows' first row, w of the first own column.
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

  // Windows that do not overlap together; the order of each sum is fixed by where the element stands among the thread's
  // columns.
  __device__ __forceinline__ void add(const Sums& sums, int begin, int end) const {
    constexpr int kApart = (kWindowW + kStrideW - 1) / kStrideW;
    float* to[kWindows][kValues];
#pragma unroll
    for (int b = begin; b < end; ++b)
#pragma unroll
      for (int v = 0; v < kValues; ++v) to[b][v] = sums.of(numbers[b][v]);
#pragma unroll
    for (int first = begin; first < begin + kApart && first < end; ++first) {
      float sum[(kWindows + kApart - 1) / kApart][kValues];
#pragma unroll
      for (int b = first; b < end; b += kApart)
#pragma unroll
        for (int v = 0; v < kValues; ++v) sum[b / kApart][v] = Sums::at(to[b][v], 0, v) + grad[b][v];
#pragma unroll
      for (int b = first; b < end; b += kApart)
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
  T* dx;                         // row h
  int h, p, first, last, count;  // rows of windows that are written, and columns
  unsigned place;                // of the row that is found next
  unsigned odd = 0;              // rows with places that are turned, as bits from h on
  Bests open[kRows > 1 && !kGiven
                 ? kRows - 1
                 : 1];  // of the rows of windows from p on: over their rows up to the one that is found next

  __device__ __forceinline__ explicit Walk(char* smem) : sums(smem) {}
  __device__ __forceinline__ Bests found(const Ordered& line, int r) {
    Bests bests = {};
    if constexpr (!kGiven) odd |= static_cast<unsigned>(source.find(bests, line, h + r, place)) << r;
    place = next_row(place);
    return bests;
  }
  // The same with another row of x, number r from h on, which is in the row of windows p + j.
  static __device__ __forceinline__ Bests with(const Bests& open, const Bests& row, int r, int j) {
    return r == j * kStrideH ? row : open.before(row);
  }

  __device__ __forceinline__ void begin() {
    place = kTop;
#pragma unroll
    for (int r = 0; r < kWindowH; ++r) Sums::clear(sums.of(r * kMarks));
  }
  // Row r < kKept from h on, before the first step.
  __device__ __forceinline__ void opened(const Ordered& line, int r) {
    const Bests row = found(line, r);
#pragma unroll
    for (int j = 0; j < kRows - 1 && !kGiven; ++j) {
      if (r >= j * kStrideH) open[j] = with(open[j], row, r, j);
    }
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

  // Adds what a row of windows gives where neighbours share. The windows of the left half of one thread have no column
  // in common with those of another, nor have those of the right half: all of a block give with one half at a time.
  __device__ __forceinline__ void give_in_turn(const Gifts& gifts, bool gives) {
    constexpr int kHalf = kOwn / 2;
    static_assert(!kShares || ((kHalf - 1) * kStrideW + kWindowW <= kColumns && kHalf * kStrideW >= kMargin + kBeyond),
                  "halves apart");
    if constexpr (!Config::kEarly) __syncthreads();  // all have taken the sums of rows that gave way
    if (gives) gifts.add(sums, 0, kHalf);
    __syncthreads();
    if (gives) gifts.add(sums, kHalf, kOwn);
    __syncthreads();
  }
  // What a row of windows gives, unless what was read is of another row.
  __device__ __forceinline__ void give(Gifts& gifts, const Bests& bests, bool gives, const Divider& by_width) {
    if constexpr (kGiven) {
      gifts.place(by_width, h, place % kRound, source.q * kStrideW);
    } else {
      gifts.seek(bests, odd != 0);
    }
    if constexpr (kShares) {
      give_in_turn(gifts, gives);
    } else {
      if (gives) gifts.add(sums, 0, kWindows);
    }
  }
  // Writes the rows that no further row of windows covers. Returns whether it was the last.
  __device__ __forceinline__ bool finish() {
    unsigned row = place;  // the sums of row h give way to those of row h + kWindowH
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

}  // namespace dnnarray
