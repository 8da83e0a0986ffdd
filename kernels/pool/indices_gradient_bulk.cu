// The gradient of argmax_gradient_bulk.cu where the places of the maxima are given: long runs of rows of windows, with
// their places, come into shared memory by TMA, and each window adds its gradient to one of the sums that its thread
// has there for the rows and columns under its windows.
//
// Layout:  as argmax_gradient_bulk.cu; sums lie as far apart as there are threads, so that lanes meet in no bank. Sums
//          of kWindowH rows take turns.
// Needs:   as argmax_gradient_bulk.cu; planes below 2^29. A place that is not in its window is nowhere.
// Bound:   memory: grad and places read about once, dx written once.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
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
  static constexpr bool kTurns = true;
  using Saved = long long;
};
struct Arguments {
  long long total;
  dnnarray::Divider tiles;
  int steps;
  int room;
  int stage;
  dnnarray::Side h;
  dnnarray::Side w;
  dnnarray::Divider width;
};
#define DNNARRAY_ENTRY pool_indices_gradient_bulk_default
#endif

#include "pool/bulk_tiles.cuh"

using namespace dnnarray;

using Saved = Config::Saved;
constexpr int kSums = kWindowH * kSeen,
              kSumBytes = (kSums + 1) * Config::kThreads * static_cast<int>(sizeof(float));  // one for what is nowhere
constexpr int kNamed = kOwn * static_cast<int>(sizeof(Saved)) < 16
                           ? kOwn
                           : 16 / static_cast<int>(sizeof(Saved));  // places that are read together

struct Walk : Strip {
  const char *grad, *indices;  // of the row of windows, in shared memory
  float* sums;
  int base = 0;  // sums of row h begin with this number
  int width, column, grad_row, indices_row;

  __device__ __forceinline__ Walk(const Strip& strip, const Tiles& tiles, const Tile& t, char* smem, const char* box)
      : Strip(strip) {
    sums = reinterpret_cast<float*>(smem + kHead) + threadIdx.x;
    width = tiles.w.extent, column = place.group * kColumns - kMargin;
    grad_row = tiles.w.outputs * static_cast<int>(sizeof(T)),
    indices_row = tiles.w.outputs * static_cast<int>(sizeof(Saved));
    indices = windows_at<Saved>(box, p, t.top_window, tiles.w.outputs, place);
    grad = windows_at<T>(box + tiles.room, p, t.top_window, tiles.w.outputs, place);
  }
  __device__ __forceinline__ float& sum(int number) const { return sums[number * Config::kThreads]; }

  // The number of the sum for a place in window b.
  __device__ __forceinline__ int number(Saved saved, int b, const Divider& by_width) const {
    const int named = static_cast<long long>(saved) >> 31 == 0 ? static_cast<int>(saved) : -1;
    const int row = static_cast<int>(__umulhi(static_cast<unsigned>(named), by_width.magic) >> by_width.shift);
    const int r = row - h, c = named - row * by_width.divisor - column - b * kStrideW;
    const int at = base + r * kSeen;
    return named >= 0 && within(r, kWindowH) && within(c, kWindowW) ? (at < kSums ? at : at - kSums) + b * kStrideW + c
                                                                    : kSums;
  }
  __device__ __forceinline__ void give(const Divider& by_width) {
    float given[kOwn];
    widen_all(given, load_wordwise<T, kOwn>(reinterpret_cast<const T*>(grad)));
    int numbers[kOwn];
#pragma unroll
    for (int b = 0; b < kOwn; b += kNamed) {
      const auto saved = load_wide<Saved, kNamed>(reinterpret_cast<const Saved*>(indices) + b);
#pragma unroll
      for (int k = 0; k < kNamed; ++k) numbers[b + k] = number(saved.at[k], b + k, by_width);
    }
    // Windows that do not overlap together; the order of each sum is fixed by where the windows stand.
    constexpr int kApart = (kWindowW + kStrideW - 1) / kStrideW;
#pragma unroll
    for (int from = 0; from < kApart && from < kOwn; ++from) {
      float more[(kOwn + kApart - 1) / kApart];
#pragma unroll
      for (int b = from; b < kOwn; b += kApart) more[b / kApart] = sum(numbers[b]) + given[b];
#pragma unroll
      for (int b = from; b < kOwn; b += kApart) sum(numbers[b]) = more[b / kApart];
    }
  }
  __device__ __forceinline__ void step(const Divider& by_width) {
    if (within(p, outputs)) give(by_width);
    grad += grad_row, indices += indices_row;
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) {
      if (left <= writing) {
        float all[kSeen], own[kColumns];
#pragma unroll
        for (int i = 0; i < kSeen; ++i) all[i] = sum(base + i);
        place.exchange(own, all);
        if (within(h + r, written)) put(dx + r * width, own);
      }
#pragma unroll
      for (int i = 0; i < kSeen; ++i) sum(base + i) = 0;
      base = base + kSeen < kSums ? base + kSeen : 0;
    }
    h += kStrideH, ++p, --left, dx += kStrideH * width;
  }
  __device__ __forceinline__ void operator()(const Divider& by_width) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum(i) = 0;
    while (left > 0) step(by_width);
  }
};

// Arguments as of Tiles; `room` bytes of a stage are for places, and positions in the plane are divided by its `width`.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Saved* __restrict__ indices, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char smem[];
  const Tiles tiles(a);
  const Divider by_width = a.width;
  const Place place(tiles.w.extent);
  const auto ask = [&](const Tile& t, unsigned to, unsigned barrier) {
    const Run run(indices, t.plane * tiles.h.outputs, t.top_window, t.windows, tiles.w.outputs);
    const Run windows(grad, t.plane * tiles.h.outputs, t.top_window, t.windows, tiles.w.outputs);
    mbarrier_arrive_expect_tx(barrier, run.bytes + windows.bytes);
    run.ask(to, barrier);
    windows.ask(to + tiles.room, barrier);
  };
  through(tiles, smem, smem + kHead + kSumBytes, ask,
          [&](const Tile& t, const char* box) { Walk(Strip(tiles, t, place, dx), tiles, t, smem, box)(by_width); });
}
