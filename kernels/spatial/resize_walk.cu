// The gradient of resampling by a whole factor, written on the side with fewer elements (resize_polyphase.cu), by
// threads that walk: each row of x is filtered once and added to the rows of y on both sides that it is a tap of, of
// which kRows are complete after each step.
//
// Layout:  x (planes, height * kFactorH, width * kFactorW), y (planes, height, width). A thread has kColumns neighbours
//          of `rows` rows of y, a strip. Every second strip is walked upwards, so that threads that need the same rows
//          of x between two strips do so at the same time. Rows of x come through shared memory, two steps ahead. With
//          kShared a warp stands in one strip, and its threads read what lies on both sides where their neighbours have
//          it: each element is fetched once, those beside a warp twice.
// Needs:   kColumns divide the width; pointers aligned to kPiece elements; kShared: the threads of a row are whole
//          warps.
// Bound:   memory.

#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/core/division.cuh"
#include "dnnarray/ptx/cp_async.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = 3;
  static constexpr bool kUp = true;
  static constexpr bool kTransposed = true;
  static constexpr int kFactorH = 2;
  static constexpr int kFactorW = 2;
  static constexpr int kRows = 2;
  static constexpr int kColumns = 2;
  static constexpr int kChannels = 1;
  static constexpr int kPiece = 4;
  static constexpr int kThreads = 128;
  static constexpr bool kShared = false;
};
struct Arguments {
  long long threads;
  long long groups;
  long long strips;
  long long groups_divisor;
  long long strips_divisor;
  long long rows;
  long long height;
};
#define DNNARRAY_ENTRY spatial_resize_walk_default
#endif

#include "spatial/polyphase_rows.cuh"

using namespace dnnarray;
constexpr int kFactor = Rows::kOwn / Rows::kOut;

__device__ __forceinline__ void accumulate(Line& sum, const Line& of) {
#pragma unroll
  for (int o = 0; o < Columns::kOut; ++o) add(sum[o], of[o], A(1), false);
}

// The sums of rows of y that would lie beyond an end go to the one at that end. `row` is the first of them.
template <int kLines>
__device__ __forceinline__ void fold_ends(Line (&sums)[kLines], int row, int height) {
#pragma unroll
  for (int o = 0; o < Rows::kOut; ++o) {
    if (row + o < 0) accumulate(sums[o + 1], sums[o]);
    if (row + o != height - 1) continue;
#pragma unroll
    for (int beyond = 1; beyond <= Rows::kReach; ++beyond) accumulate(sums[o], sums[o + beyond]);
  }
}

// The rows that a walking thread has on their way to shared memory, where nobody else looks: a group of copies for
// each.
constexpr int kOwnPieces = Columns::kOwn / kIn, kSidePieces = Raw::kSides > 0 ? 2 * Raw::kSides : 1;
constexpr bool kShared = Config::kShared;
static_assert(!kShared || (Raw::kSides == 1 && kChannels == 1), "what lies on a side is one piece of a neighbour");
constexpr int kSharing = kShared ? 32 : 1;  // threads that have one piece on either side together
constexpr int kRowBytes = (kOwnPieces * kIn + kSidePieces * kSide / kSharing) * kChannels * sizeof(T);
constexpr int kMostAhead = 48 * 1024 / (kRowBytes * Config::kThreads) / Rows::kOwn * Rows::kOwn;

// Where a thread of a warp that shares a row finds, in a slot, what lies on both sides of its own elements; and, at an
// end of the warp, which of the two it brings, for all others have that for it.
struct Sides {
  int before, behind, brought;
  bool brings;

  template <typename Slot>
  __device__ __forceinline__ explicit Sides(const Slot& slot) {
    const int lane = threadIdx.x % kSharing, warp = threadIdx.x / kSharing;
    const auto offset = [&](const auto& of) {
      return static_cast<int>(reinterpret_cast<const char*>(&of) - reinterpret_cast<const char*>(&slot));
    };
    before =
        lane == 0 ? offset(slot.sides[0][warp]) : offset(slot.own[kOwnPieces - 1][threadIdx.x - 1].at[kIn - kSide]);
    behind = lane == kSharing - 1 ? offset(slot.sides[1][warp]) : offset(slot.own[0][threadIdx.x + 1]);
    brought = lane == 0 ? -kSide : Columns::kOwn;
    brings = lane == 0 || lane == kSharing - 1;
  }
};

template <int kRows>
struct Queue {
  struct Slot {
    Vec<T, kIn * kChannels> own[kOwnPieces][Config::kThreads];
    Vec<T, kSide * kChannels> sides[kSidePieces][Config::kThreads / kSharing];
  };
  Slot* slots;
  Sides shared;
  int base = 0;

  __device__ __forceinline__ explicit Queue(Slot* at) : slots(at), shared(at[0]) {}

  // Row i of a step.
  __device__ __forceinline__ Raw take(int i) const {
    cp_async_wait_group<kRows - 1>();
    if constexpr (kShared) __syncwarp();  // the copies of all
    const Slot& slot = slots[base + i];
    Raw raw;
#pragma unroll
    for (int k = 0; k < kOwnPieces; ++k) raw.own[k] = load_wordwise<T, kIn * kChannels>(slot.own[k][threadIdx.x].at);
    if constexpr (kShared) {
      raw.before[0] = load_wordwise<T, kSide>(side(slot, shared.before));
      raw.behind[0] = load_wordwise<T, kSide>(side(slot, shared.behind));
      __syncwarp();  // before anyone brings the next row to this place
      return raw;
    }
#pragma unroll
    for (int k = 0; k < Raw::kSides; ++k) {
      raw.before[k] = load_wordwise<T, kSide * kChannels>(slot.sides[2 * k][threadIdx.x].at);
      raw.behind[k] = load_wordwise<T, kSide * kChannels>(slot.sides[2 * k + 1][threadIdx.x].at);
    }
    return raw;
  }
  // That of kRows rows on, to the same place.
  __device__ __forceinline__ void bring(int i, const T* x, const Place& place, bool there) const {
    Slot& slot = slots[base + i];
#pragma unroll
    for (int k = 0; k < kOwnPieces; ++k) copy(slot.own[k][threadIdx.x], x + k * kIn * place.step, there);
    if constexpr (kShared) {
      const int at = shared.brought;
      if (shared.brings)
        copy(*reinterpret_cast<Vec<T, kSide>*>(side(slot, at < 0 ? shared.before : shared.behind)), x + at,
             there && place.inside(at, kSide));
    } else {
#pragma unroll
      for (int k = 0; k < Raw::kSides; ++k) {
        const int before = -(k + 1) * kSide, behind = Columns::kOwn + k * kSide;
        copy(slot.sides[2 * k][threadIdx.x], x + before * place.step, there && place.inside(before, kSide));
        copy(slot.sides[2 * k + 1][threadIdx.x], x + behind * place.step, there && place.inside(behind, kSide));
      }
    }
    cp_async_commit_group();
  }
  __device__ __forceinline__ void next() { base = base + Rows::kOwn == kRows ? 0 : base + Rows::kOwn; }

 private:
  static __device__ __forceinline__ T* side(const Slot& slot, int at) {
    return reinterpret_cast<T*>(const_cast<char*>(reinterpret_cast<const char*>(&slot)) + at);
  }
  template <int N>
  static __device__ __forceinline__ void copy(Vec<T, N>& to, const T* from, bool there) {
    cp_async<sizeof to>(shared_address(&to), from, there);
  }
};

// Those of the next step in registers, where single elements of 16 bits cannot be copied so.
struct Held {
  Raw rows[Rows::kOwn];

  __device__ __forceinline__ const Raw& take(int i) const { return rows[i]; }
  __device__ __forceinline__ void bring(int i, const T* x, const Place& place, bool there) {
    rows[i] = Raw(x, place, there);
  }
  __device__ __forceinline__ void next() {}
};

// The rows of y that a thread gives, of so many, counted from the end that it walks away from; x and y are those at
// that end.
struct Strip {
  const T* x;
  T* y;
  long long line, out_line;  // from row to row
  int first, end, height;
  // at the most, the same for all threads: they stay together, as those of a warp that read each other's elements must
  int steps;
};

// Rows of y that would lie beyond an end are summed like all others, and then added to the one at that end.
template <int kAhead, typename Coming>
__device__ __forceinline__ void walk(Coming coming, const Strip& strip, const Place& place) {
  constexpr int kOver = Rows::kReach,
                kLines =
                    Rows::kOut + 2 * kOver;  // rows of y that a step adds to, the first of them kOver before its own
  const Ends<Columns> across(place.first(), place.last());
  int own = strip.first == 0 ? 0 : strip.first - kOver,
      at = own * kFactor;  // the first row of y of a step, the next row of x to be brought
  const T* source = strip.x + at * strip.line;
  T* target = strip.y + (own - kOver) * strip.out_line;
  const auto bring = [&](int i) {
    coming.bring(i, source, place, at >= 0 && at < strip.height * kFactor);
    ++at, source += strip.line;
  };
#pragma unroll
  for (int step = 0; step < kAhead / Rows::kOwn; ++step) {
#pragma unroll
    for (int i = 0; i < Rows::kOwn; ++i) bring(i);
    coming.next();
  }
  Line sums[kLines] = {};
  for (int step = 0; step < strip.steps; ++step, own += Rows::kOut) {
    bool begun[kLines];
#pragma unroll
    for (int o = 0; o < kLines; ++o) begun[o] = o < 2 * kOver;
#pragma unroll
    for (int i = 0; i < Rows::kOwn; ++i) {
      const Window window(coming.take(i), place);
      bring(i);
      Line filtered = {};
      filter(filtered, window, across);
#pragma unroll
      for (int o = 0; o < kLines; ++o) {
        const double weight = Rows::weight(o - kOver, i + Rows::kHalo);
        if (weight == 0.0) continue;
#pragma unroll
        for (int k = 0; k < Columns::kOut; ++k) add(sums[o][k], filtered[k], A(weight), !begun[o]);
        begun[o] = true;
      }
    }
    coming.next();
    const int row = own - kOver;
    if (row < 0 || row + Rows::kOut >= strip.height) fold_ends(sums, row, strip.height);
#pragma unroll
    for (int o = 0; o < Rows::kOut; ++o, target += strip.out_line) {
      if (row + o >= strip.first && row + o < strip.end) put(target, sums[o], place.step);
    }
#pragma unroll
    for (int o = 0; o < kLines; ++o) {
#pragma unroll
      for (int k = 0; k < Columns::kOut; ++k) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sums[o][k][c] = o < 2 * kOver ? sums[o + Rows::kOut][k][c] : A(0);
      }
    }
  }
}

constexpr int kResident = !kShared ? 0
                          : __CUDA_ARCH__ < 1000
                              ? 8
                              : 7;  // blocks of a multiprocessor that registers leave room for without a spill

extern "C" __global__ void __launch_bounds__(Config::kThreads, kResident)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const unsigned index = blockIdx.x * Config::kThreads + threadIdx.x;
  if (index >= a.threads) return;
  const Divisor by_groups(a.groups, a.groups_divisor), by_strips(a.strips, a.strips_divisor);
  const int group = static_cast<int>(by_groups.remainder(index)),
            number = static_cast<int>(by_strips.remainder(by_groups.quotient(index)));
  const long long plane = by_strips.quotient(by_groups.quotient(index));
  const Place place{group * Columns::kOwn, static_cast<int>(a.groups) * Columns::kOwn, 1};
  const int all = static_cast<int>(a.height), first = number * static_cast<int>(a.rows),
            end = min(first + static_cast<int>(a.rows), all);
  const long long line = place.width, out_line = a.groups * Columns::kOut, in_rows = a.height * kFactor;
  const T* source = x + plane * in_rows * line + place.column;
  T* target = y + plane * a.height * out_line + group * Columns::kOut;
  const int steps = (static_cast<int>(a.rows) + 2 * Rows::kReach + Rows::kOut - 1) / Rows::kOut;
  const bool up = number & 1;
  const Strip strip = up ? Strip{source + (in_rows - 1) * line,
                                 target + (a.height - 1) * out_line,
                                 -line,
                                 -out_line,
                                 all - end,
                                 all - first,
                                 all,
                                 steps}
                         : Strip{source, target, line, out_line, first, end, all, steps};
  if constexpr (sizeof(T) * (kSide < kIn ? kSide : kIn) >= 4 && kMostAhead >= Rows::kOwn) {
    constexpr int kAhead = kMostAhead < 2 * Rows::kOwn ? Rows::kOwn : 2 * Rows::kOwn;
    __shared__ typename Queue<kAhead>::Slot smem_slots[kAhead];
    walk<kAhead>(Queue<kAhead>(smem_slots), strip, place);
  } else {
    walk<Rows::kOwn>(Held{}, strip, place);
  }
}
