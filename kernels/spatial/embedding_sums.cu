// dweight[r, :] = the sum of grad[i, :] over the i with indices[i] = r, in the order of i: the same bits from run to
// run.
//
// Entries are sorted by row (sort_move.cu); `places` says which i each is. A row with up to kPiece entries is summed by
// the threads that write it. A longer one in two levels: stage 0 sums each piece of kPiece entries, stage 1 each group
// of kGroup pieces for rows with more than a group of entries, stage 2 the pieces or groups of a row. Pieces and groups
// are cut where the sorted list is a multiple of their length, so that no more than two long rows meet in one: the one
// that was there before (slot 0) and the one that begins (slot 1).
//
// Layout:  grad (count, length) in C order; dweight by its strides; sums of pieces and groups (pieces, 2, length) in
//          arithmetic type. kLanes threads own kLanes * kCount vectors of a piece, group or row.
// Needs:   pointers and the length aligned to kVector elements; count and rows below 2^31.
// Bound:   memory: grad read once, dweight written once.

#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kStage = 2;
  static constexpr int kVector = 4;
  static constexpr int kCount = 1;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* pieces;
  dnnarray::arithmetic_t<Config::Element>* groups;
  long long units;
  long long count;
  long long rows;
  long long length;
  long long row_step;
  long long column_step;
};
#define DNNARRAY_ENTRY spatial_embedding_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kCount = Config::kCount, kPiece = 32, kGroup = 64, kAhead = kCount > 1 ? 2 : 4;
constexpr int kStep = Config::kLanes * kVector;

// The entries [start, end) of a row.
struct Entries {
  long long start, end;

  __device__ __forceinline__ Entries(const unsigned* starts, long long row)
      : start(starts[row]), end(starts[row + 1]) {}
  __device__ __forceinline__ long long count() const { return end - start; }
  // The slot of this row in the part of the list that begins at `at`.
  __device__ __forceinline__ long long slot(long long at) const { return start > at; }
};

// The vectors of a thread: kCount of them, kLanes apart; those behind the row are not there.
struct Total {
  A at[kCount][kVector] = {};

  template <typename S>
  __device__ __forceinline__ void add(const S* source, long long left) {
    Vec<S, kVector> part[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) part[c] = load_wide<S, kVector>(source + (c * kStep < left ? c * kStep : 0));
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) at[c][v] += widen(part[c].at[v]);
    }
  }
  // += the vectors at source + where(k), for k of [first, last) in order.
  template <typename S, typename Where>
  __device__ __forceinline__ void add(const S* source, long long left, long long first, long long last, Where where) {
#pragma unroll kAhead
    for (long long k = first; k < last; ++k) add(source + where(k), left);
  }
};

struct Sources {
  const T* grad;
  const unsigned *places, *starts;
  A *pieces, *groups;
  long long length, left;  // `left` elements from the first of this thread on

  __device__ __forceinline__ void add_entries(Total& sum, long long first, long long last) const {
    sum.add(grad, left, first, last, [&](long long k) { return places[k] * length; });
  }
  // Of parts [first, last) of `each` entries.
  __device__ __forceinline__ void add_parts(Total& sum, const A* parts, const Entries& row, long long each,
                                            long long first, long long last) const {
    sum.add(parts, left, first, last, [&](long long k) { return (2 * k + row.slot(k * each)) * length; });
  }
  __device__ __forceinline__ void put(A* parts, long long at, const Total& sum) const {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      if (c * kStep >= left) break;
      Vec<A, kVector> found;
#pragma unroll
      for (int v = 0; v < kVector; ++v) found.at[v] = sum.at[c][v];
      store_wide(parts + at + c * kStep, found);
    }
  }
};

// Part `own` of the list, of `each` entries: what the rows with more than `each` entries have in it.
__device__ __forceinline__ void sum_part(const Sources& from, const unsigned* keys, long long own, long long each,
                                         long long count, long long rows) {
  const long long begin = own * each, end = begin + each < count ? begin + each : count;
  const long long met[2] = {keys[begin], keys[end - 1]};
#pragma unroll
  for (int slot = 0; slot < 2; ++slot) {
    if (met[slot] >= rows || (slot == 1 && met[1] == met[0])) continue;
    const Entries row(from.starts, met[slot]);
    if (row.count() <= each) continue;
    const long long first = row.start > begin ? row.start : begin, last = row.end < end ? row.end : end;
    Total sum;
    if constexpr (Config::kStage == 0) {
      from.add_entries(sum, first, last);
      from.put(from.pieces, (2 * own + row.slot(begin)) * from.length, sum);
    } else {
      from.add_parts(sum, from.pieces, row, kPiece, first / kPiece, (last + kPiece - 1) / kPiece);
      from.put(from.groups, (2 * own + row.slot(begin)) * from.length, sum);
    }
  }
}

__device__ __forceinline__ void sum_row(const Sources& from, long long own, T* y, long long column_step) {
  constexpr int kLong = kPiece * kGroup;
  const Entries row(from.starts, own);
  Total sum;
  if (row.count() <= kPiece) {
    from.add_entries(sum, row.start, row.end);
  } else if (row.count() <= kLong) {
    from.add_parts(sum, from.pieces, row, kPiece, row.start / kPiece, (row.end + kPiece - 1) / kPiece);
  } else {
    from.add_parts(sum, from.groups, row, kLong, row.start / kLong, (row.end + kLong - 1) / kLong);
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    if (c * kStep >= from.left) break;
    Vec<T, kVector> reg_y;
#pragma unroll
    for (int v = 0; v < kVector; ++v) reg_y.at[v] = narrow<T>(sum.at[c][v]);
    if (column_step == 1) {
      store(y + c * kStep, reg_y);
    } else {
#pragma unroll
      for (int v = 0; v < kVector; ++v) y[(c * kStep + v) * column_step] = reg_y.at[v];
    }
  }
}

// `units` pieces, groups or rows.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const unsigned* __restrict__ keys, const unsigned* __restrict__ places,
                   const unsigned* __restrict__ starts, T* __restrict__ dweight, const __grid_constant__ Arguments a) {
  constexpr int kLanes = Config::kLanes, kUnits = Config::kThreads / kLanes;
  const unsigned tiles = static_cast<unsigned>((a.length / kVector + kLanes * kCount - 1) / (kLanes * kCount)),
                 block = blockIdx.x / tiles;
  const long long own = static_cast<long long>(block) * kUnits + threadIdx.x / kLanes;
  const long long column =
      static_cast<long long>((blockIdx.x - block * tiles) * kLanes * kCount + threadIdx.x % kLanes) * kVector;
  if (own >= a.units || column >= a.length) return;
  const Sources from{grad + column, places, starts, a.pieces + column, a.groups + column, a.length, a.length - column};
  if constexpr (Config::kStage == 2) {
    sum_row(from, own, dweight + own * a.row_step + column * a.column_step, a.column_step);
  } else {
    sum_part(from, keys, own, Config::kStage == 0 ? kPiece : kPiece * kGroup, a.count, a.rows);
  }
}
