// Maxima of small windows that overlap, in channels-first memory, and where they stand: blocks that stay fetch long
// runs of a plane's rows, or all of it, into shared memory by TMA, one after the other, so that memory is asked for
// each element about once.
//
// Layout:  kLanes lanes have a row, kColumns columns and the windows that begin there each; a warp has 32 / kLanes
//          strips of rows of windows, which it walks down at once, and a block's strips are a tile. What is read of a
//          row stays as the best of each window in it, merged into those of the windows that are still open. A window
//          whose maximum is not finite is looked at again, element by element.
// Needs:   as argmax_gradient_bulk.cu, but for planes of windows of any size; planes below 2^31.
// Bound:   memory: x read about once, y and places written once.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kWindowH = 5;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 5;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 2;
  static constexpr int kColumns = 8;
  static constexpr int kLanes = 16;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 4;
  static constexpr int kStages = 1;
};
struct Arguments {
  long long total;
  dnnarray::Divider tiles;
  int steps;
  int stage;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_bulk_argmax_default
#endif

#include "pool/best.cuh"
#include "pool/bulk_tiles.cuh"

using namespace dnnarray;

using Entry = Best<T, false, false>;
constexpr int kPlaces = 16 / sizeof(long long);  // that are stored together
static_assert(!kHalves && kOwn % kPlaces == 0, "an element is a word, and places are stored by vectors");

// What a block writes of a plane, and reads for that.
struct Span {
  long long plane;
  int first, top, rows;  // the first row of windows; rows of x
};
struct Spans {
  long long total;
  Divider by_tiles;  // of a plane
  int steps, stage;  // rows of windows of a strip; bytes of a tile
  Axis<false> h, w;

  __device__ __forceinline__ Span operator()(long long number) const {
    const auto at = by_tiles(number);
    Span t;
    t.plane = at.quotient, t.first = at.rest * kStrips * steps;
    const int last = min(t.first + kStrips * steps, h.outputs) - 1;
    t.top = max(t.first * kStrideH - h.before, 0),
    t.rows = min(last * kStrideH - h.before + kWindowH, h.extent) - t.top;
    return t;
  }
};

struct Walk {
  Place place;
  const Spans& spans;
  const char* box;  // the tile
  int top, h, p, end;
  long long at;  // of the results
  Entry open[kRows][kOwn];

  __device__ __forceinline__ Walk(const Spans& all, const Span& t, const Place& its, const char* tile)
      : place(its), spans(all), box(tile), top(t.top) {
    p = t.first + static_cast<int>(threadIdx.x) / kLanes * all.steps, end = min(p + all.steps, all.h.outputs),
    h = p * kStrideH - all.h.before;
    at = (t.plane * all.h.outputs + p) * all.w.outputs + place.group * kOwn;
  }
  __device__ __forceinline__ int column() const { return place.group * kColumns - kMargin; }
  __device__ __forceinline__ const T* row_at(int row) const {
    return reinterpret_cast<const T*>(box) + (row - top) * spans.w.extent;
  }

  // The best of each window in a row of x.
  __device__ __forceinline__ void read(Entry (&best)[kOwn], int row) const {
    constexpr unsigned kLowest = 0xff800000u;
    const bool there = within(row, spans.h.extent);
    const T* const from = row_at(there ? row : top) + place.group * kColumns;
    unsigned words[kSeen];
#pragma unroll
    for (int i = 0; i < kColumns; i += kVector) {
      const auto piece = load_wordwise<T, kVector>(from + i);
#pragma unroll
      for (int k = 0; k < kVector; ++k) words[kMargin + i + k] = piece.at[k];
    }
#pragma unroll
    for (int i = 0; i < kMargin; ++i) words[i] = place.from_left(words[kColumns + i], kLowest);
#pragma unroll
    for (int i = 0; i < kBeyond; ++i) words[kMargin + kColumns + i] = place.from_right(words[kMargin + i], kLowest);
    const int first = row * spans.w.extent + column();
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      best[b] = Entry(__uint_as_float(words[b * kStrideW]), b * kStrideW);
#pragma unroll
      for (int s = 1; s < kWindowW; ++s)
        best[b].meet(Entry(__uint_as_float(words[b * kStrideW + s]), b * kStrideW + s));
      best[b].code += first;
      if (!there) best[b].value = __uint_as_float(kLowest);
    }
  }
  // Row r of those of the row of windows p.
  __device__ __forceinline__ void merge(int r) {
    Entry best[kOwn];
    read(best, h + r);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (r < j * kStrideH || r >= j * kStrideH + kWindowH) continue;
#pragma unroll
      for (int b = 0; b < kOwn; ++b) {
        if (r == j * kStrideH) {
          open[j][b] = best[b];
        } else {
          open[j][b].meet(best[b]);
        }
      }
    }
  }
  // Window b of the row p, element by element.
  __device__ __forceinline__ Entry again(int b) const {
    Entry best(0, -1);
#pragma unroll 1
    for (int i = 0; i < kWindowH * kWindowW; ++i) {
      const int row = h + i / kWindowW, c = column() + b * kStrideW + i % kWindowW;
      if (!within(row, spans.h.extent) || !within(c, spans.w.extent)) continue;
      const float x = row_at(row)[c];
      if (best.code < 0 || x > best.value || x != x) best = Entry(x, row * spans.w.extent + c);
    }
    return best;
  }
  __device__ __forceinline__ void operator()(T* gmem_y, long long* gmem_places) {
#pragma unroll
    for (int r = 0; r < kKept; ++r) merge(r);
#pragma unroll 1
    for (int step = 0; step < spans.steps; ++step) {
#pragma unroll
      for (int r = kKept; r < kWindowH; ++r) merge(r);
      const bool writes = place.there && p < end;
#pragma unroll
      for (int b = 0; b < kOwn; ++b) {
        Entry::Watch special{};
        open[0][b].watch(special);
        if (writes && Entry::is_special(special)) open[0][b] = again(b);
      }
      Vec<T, kOwn> y;
#pragma unroll
      for (int b = 0; b < kOwn; ++b) y.at[b] = open[0][b].element(0);
      if (writes) {
        store(gmem_y + at, y);
#pragma unroll
        for (int b = 0; b < kOwn; b += kPlaces) {
          Vec<long long, kPlaces> places;
#pragma unroll
          for (int k = 0; k < kPlaces; ++k) places.at[k] = open[0][b + k].where(0);
          store(gmem_places + at + b, places);
        }
      }
#pragma unroll
      for (int j = 1; j < kRows; ++j)
#pragma unroll
        for (int b = 0; b < kOwn; ++b) open[j - 1][b] = open[j][b];
      ++p, h += kStrideH, at += spans.w.outputs;
    }
  }
};

// How many tiles there are, and of a plane; rows of windows of a strip; bytes of a tile; both axes.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char smem[];
  const Spans spans{
      a.total, a.tiles, a.steps, a.stage, Axis<false>(a.h, kWindowH, kStrideH), Axis<false>(a.w, kWindowW, kStrideW)};
  const Place place(spans.w.extent);
  const auto ask = [&](const Span& t, unsigned to, unsigned barrier) {
    const Run run(x, t.plane * spans.h.extent, t.top, t.rows, spans.w.extent);
    mbarrier_arrive_expect_tx(barrier, run.bytes);
    run.ask(to, barrier);
  };
  through(spans, smem, smem + kHead, ask,
          [&](const Span& t, const char* box) { Walk(spans, t, place, box)(y, indices); });
}
