// Gradient of maximum pooling over small windows that overlap, in channels-first memory, where the maxima are sought,
// in one pass: blocks that stay fetch long runs of rows of a plane, or all of it, and what the windows over them say,
// into shared memory by TMA, one after the other.
//
// Of a row of x, each window along it has a maximum; of the rows of a window, the first that has the largest of these
// gets the window's gradient, and of that row's elements in the window the first that is equal to its maximum gets what
// the row got: so two searches of kWindow elements do for kWindow^2. All that overlaps down the columns stays in
// registers, and what a thread has for the columns beside its own goes to its neighbour lanes.
//
// Layout:  kLanes lanes have a row, kColumns columns and the windows that begin there each; a warp has 32 / kLanes
//          strips of rows, which it walks down at once, and a block's strips are a tile. Half types go two windows at a
//          time (PairedRow); where a warp met an infinity or a NaN, it walks its strips again (ExactRow). In which
//          order an element's gradients are summed depends on kColumns alone, not on tiles.
// Needs:   sm_90; whole vectors in a row of x and of windows, as many windows in a row as the stride says, rows of x of
//          multiples of 16 bytes, planes of windows too, of at most 4,096 rows; padding of at most window - stride
//          along a row; dilation 1; an even number of windows of a thread.
// Bound:   memory: grad and x read about once, dx written once; half types the ALU pipe as well: comparisons and
//          selections.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 1;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 1;
  static constexpr int kBefore = 1;
  static constexpr int kColumns = 8;
  static constexpr int kLanes = 16;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 4;
  static constexpr int kStages = 1;
  static constexpr bool kTurns = true;
};
struct Arguments {
  long long total;
  dnnarray::Divider tiles;
  int steps;
  int room;
  int stage;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_argmax_gradient_bulk_default
#endif

#include "pool/bulk_rows.cuh"

using namespace dnnarray;

// Steps until rows are again in the registers they began with.
__device__ constexpr int turns() {
  for (int n = 1;; ++n)
    if (n * kStrideH % kWindowH == 0) return n;
}
constexpr int kTurns = Config::kTurns ? turns() : 1;

struct Read {
  unsigned x[kStrideH][kBody];
  Wordwise<T, kOwn> grad;
};

template <typename Row>
struct Walk : Strip {
  static constexpr int kTurn = Row::kExact && kHalves ? 1 : kTurns;  // what is seldom done is short
  const char *x, *grad,
      // in shared memory: the row that is read next, and the row of windows; what stands for those that there are not
      *head;
  int width, x_row, grad_row;  // elements and bytes
  Row rows[kWindowH];
  Read next;
  unsigned special = 0;

  __device__ __forceinline__ Walk(const Strip& strip, const Tiles& tiles, const Tile& t, const char* smem,
                                  const char* box)
      : Strip(strip), head(smem) {
    width = tiles.w.extent, x_row = width * static_cast<int>(sizeof(T)),
    grad_row = tiles.w.outputs * static_cast<int>(sizeof(T));
    x = box + (h - t.top) * x_row + place.group * kColumns * static_cast<int>(sizeof(T));
    grad = windows_at<T>(box + tiles.room, p, t.top_window, tiles.w.outputs, place);
  }

  __device__ __forceinline__ void read(unsigned (&to)[kBody], int row) {
    const T* const from = reinterpret_cast<const T*>(within(row, height) ? x : head + kNothingAt);
#pragma unroll
    for (int i = 0; i < kBody; i += kVector / kPart) {
      const auto words = load_wordwise<T, kVector>(from + i * kPart);
#pragma unroll
      for (int k = 0; k < kVector / kPart; ++k) to[i + k] = words.at[k];
    }
    x += x_row;
  }
  __device__ __forceinline__ void fetch(int windows, int from) {
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) read(next.x[r], from + r);
    next.grad = load_wordwise<T, kOwn>(reinterpret_cast<const T*>(within(windows, outputs) ? grad : head + kZerosAt));
    grad += grad_row;
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < kKept; ++r) {
      unsigned raw[kBody];
      read(raw, h + r);
      rows[r].open(raw, place, h + r, within(h + r, height), special);
#pragma unroll
      for (int b = 0; b < kOwn; ++b) rows[r].share[b] = {0, true};
    }
    fetch(p, h + kKept);
  }
  // Of each window, to the first row with its largest.
  template <typename Rows>
  static __device__ __forceinline__ void give_down(Rows row, const float (&given)[kOwn]) {
#pragma unroll
    for (int k = 0; k < kOwn / 2; ++k) {
      auto most = row(0).most(k);
#pragma unroll
      for (int r = 1; r < kWindowH; ++r) most = row(r).most(most, k);
      Gifts gifts = {given[2 * k], given[2 * k + 1]};
#pragma unroll
      for (int r = kKept; r < kWindowH; ++r) row(r).share[2 * k].begun = row(r).share[2 * k + 1].begun = false;
#pragma unroll
      for (int r = 0; r < kWindowH - 1; ++r) row(r).give_row(gifts, most, k);
      row(kWindowH - 1).share[2 * k].add(gifts.a);
      row(kWindowH - 1).share[2 * k + 1].add(gifts.b);
    }
  }
  // Of each window's share of a row, to the first element that has it.
  static __device__ __forceinline__ void give_along(float (&to)[kSeen], const Row& row) {
    Total sums[kSeen] = {};
#pragma unroll
    for (int k = 0; k < kOwn / 2; ++k) {
      const int i = 2 * k * kStrideW, j = i + kStrideW;
      Gifts gifts = {row.share[2 * k].value, row.share[2 * k + 1].value};
#pragma unroll
      for (int s = 0; s < kWindowW - 1; ++s) row.give_column(gifts, k, i + s, sums[i + s], sums[j + s]);
      sums[i + kWindowW - 1].add(gifts.a);
      sums[j + kWindowW - 1].add(gifts.b);
    }
#pragma unroll
    for (int i = 0; i < kSeen; ++i) to[i] = sums[i].value;
  }
  // A row of windows, whose rows are rows[base + r].
  __device__ __forceinline__ void step(int base) {
    const auto row = [&](int r) -> Row& { return rows[(base + r) % kWindowH]; };
#pragma unroll
    for (int r = kKept; r < kWindowH; ++r) row(r).open(next.x[r - kKept], place, h + r, within(h + r, height), special);
    float given[kOwn];
    widen_all(given, next.grad);
    fetch(p + 1, h + kWindowH);
    give_down(row, given);
    if (left <= writing) {
#pragma unroll
      for (int r = 0; r < kStrideH; ++r) {
        float sums[kSeen], own[kColumns];
        give_along(sums, row(r));
        place.exchange(own, sums);
        if (within(h + r, written)) put(dx + r * width, own);
      }
    }
    h += kStrideH, ++p, dx += kStrideH * width;
    if constexpr (kTurn == 1) {
#pragma unroll
      for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStrideH];
    }
  }
  // Returns whether some lane has seen what is not finite.
  __device__ __forceinline__ bool operator()() {
    begin();
    while (left > 0) {
#pragma unroll
      for (int turn = 0; turn < kTurn; ++turn) {
        step(turn * kStrideH % kWindowH);
        if (--left == 0) break;
      }
    }
    return __any_sync(~0u, is_special(special));
  }
};

template <typename Half, typename... Given>
__device__ __forceinline__ void walk_down(const Given&... given) {
  if constexpr (sizeof(Half) == 2) {
    if (!Walk<PairedRow<Half>>(given...)()) return;
  }
  Walk<ExactRow>(given...)();
}

// Arguments as of Tiles: how many there are, and of a plane; rows of windows of a strip; bytes of a stage for rows of
// x, and of a stage; both axes.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char smem[];
  const Tiles tiles(a);
  const Place place(tiles.w.extent);
  if (threadIdx.x < 8) reinterpret_cast<unsigned*>(smem + kZerosAt)[threadIdx.x] = 0;
  if (threadIdx.x < 8) reinterpret_cast<unsigned*>(smem + kNothingAt)[threadIdx.x] = kNothing;
  const auto ask = [&](const Tile& t, unsigned to, unsigned barrier) {
    const Run run(x, t.plane * tiles.h.extent, t.top, t.rows, tiles.w.extent);
    const Run windows(grad, t.plane * tiles.h.outputs, t.top_window, t.windows, tiles.w.outputs);
    mbarrier_arrive_expect_tx(barrier, run.bytes + windows.bytes);
    run.ask(to, barrier);
    windows.ask(to + tiles.room, barrier);
  };
  through(tiles, smem, smem + kHead, ask,
          [&](const Tile& t, const char* box) { walk_down<T>(Strip(tiles, t, place, dx), tiles, t, smem, box); });
}
