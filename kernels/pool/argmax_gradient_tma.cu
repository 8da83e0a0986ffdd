// The gradient of argmax_gradient.cu in channels-last memory, where the maxima are sought, by blocks that walk down
// their rows together: a ring in shared memory holds the next kStages rows of x (kStrideH at a time) and of windows,
// which TMA brings, so that enough is under way whatever registers the threads take (kEarly: a box gives way before the
// maxima in it are sought); and a thread seeks the maxima of its own windows alone, which it adds to the sums of its
// neighbours too (argmax_walk.cuh).
//
// Layout:  lanes are neighbouring words of channels, and warps stand beside each other along a row, of which each has
//          kColumns columns. A box is a row of all of them with what stands beside; outside of the array it is zeros.
//          The first thread asks for the boxes, and barriers count their bytes. Where a row takes several blocks, these
//          overlap by a warp at each end, which only finds what its neighbour gets.
// Needs:   sm_90; pixels of multiples of 16 bytes, padding of at most window - stride; otherwise as argmax_gradient.cu.
// Bound:   memory: grad and x read about once, dx written once; shared memory, of which the sums take most, leaves 14
//          to 28 warps to a multiprocessor.

#include "dnnarray/ptx/tma.cuh"
#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Saved = long long;
  static constexpr bool kGiven = false;
  static constexpr bool kLast = true;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 1;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 1;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 2;
  static constexpr int kColumns = 8;
  static constexpr int kPiece = 1;
  static constexpr int kThreads = 448;
  static constexpr int kBlocks = 0;
  static constexpr int kAhead = 0;
  static constexpr bool kEarly = false;
  static constexpr bool kShares = true;
  static constexpr int kStages = 3;
};
struct Arguments {
  dnnarray::TensorMap grad_map;
  dnnarray::TensorMap x_map;
  long long channels;
  unsigned chunks;
  unsigned tiles;
  unsigned strips;
  int steps;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_argmax_gradient_tma_default
#endif

#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "pool/argmax_walk.cuh"

using namespace dnnarray;

constexpr int kStages = Config::kStages, kPixel = kWarp * kPart;  // channels of a box
constexpr int kOpening = (kKept + kStrideH - 1) / kStrideH;       // boxes of x before the first row of windows
constexpr int kSkipped = kOpening * kStrideH - kKept;             // rows of the first box that no window wants
static_assert(kShares && !kGiven, "what there is a ring for");

// What a box of the ring holds: rows of x, then a row of windows. All bytes are whole lines of 128, at which boxes
// begin.
constexpr int kRowOfX = ((kAlong * kOwn - 1) * kStrideW + kWindowW) * kPixel;
constexpr int kBytesOfX = kRowOfX * kStrideH * static_cast<int>(sizeof(T));
constexpr int kBytesOfGrad = kAlong * kOwn * kPixel * static_cast<int>(sizeof(T)), kBytes = kBytesOfX + kBytesOfGrad;
constexpr int kSums = kWindowH * kMarks * kValues * kWarp * static_cast<int>(sizeof(float));  // before the ring

// The boxes of a block, one after the other.
struct Feed {
  const TensorMap *x, *grad;
  unsigned boxes, full;                // in shared memory: the ring, and its barriers
  int column, window, plane, channel;  // where boxes begin
  int h, p, from, count;  // of the next box; the first row of windows that is wanted, and how many boxes follow
  Ring<kStages> ring;

  __device__ __forceinline__ void ask() {
    if (count <= 0) return;
    const bool opening = p < from;  // x alone
    const unsigned to = boxes + ring.stage * kBytes, barrier = full + 8 * ring.stage;
    mbarrier_arrive_expect_tx(barrier, opening ? kBytesOfX : kBytes);
    tma_load(to, *x, barrier, {{channel, column, h, plane, 0}}, createpolicy_evict_last());
    if (!opening) tma_load(to + kBytesOfX, *grad, barrier, {{channel, window, p, plane, 0}});
    h += kStrideH, ++p, --count;
    ring.next();
  }
};

// What a thread reads of a box.
struct Taken {
  const char* own;  // its first channel in the first box
  unsigned full;
  Ring<kStages> ring;

  __device__ __forceinline__ void wait() const { mbarrier_wait(full + 8 * ring.stage, ring.parity); }
  __device__ __forceinline__ const T* at(int bytes) const {
    return reinterpret_cast<const T*>(own + ring.stage * kBytes + bytes);
  }
  __device__ __forceinline__ Line row(int r, int group) const {
    Line line;
    const T* const from = at(0) + r * kRowOfX + group * kColumns * kPixel;
#pragma unroll
    for (int i = 0; i < kSeen; ++i) read_words<kPart>(line.at + i, from + i * kPixel);
    return line;
  }
  __device__ __forceinline__ Said windows(int group) const {
    Said said;
    const T* const from = at(kBytesOfX) + group * kOwn * kPixel;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) said.sides[b] = load_wordwise<T, kValues>(from + b * kPixel);
    return said;
  }
};

// The channels are in `chunks` of the blocks'; `tiles` blocks have a row, and `steps` rows of windows are a strip.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(T* __restrict__ dx, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char smem[];
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const unsigned by_chunk = blockIdx.x / a.chunks, chunk = blockIdx.x - by_chunk * a.chunks;
  const unsigned by_tile = by_chunk / a.tiles, tile = by_chunk - by_tile * a.tiles;
  const unsigned plane = by_tile / a.strips, strip = by_tile - plane * a.strips;
  const int group = group_of(threadIdx.x / kWarp), lane = threadIdx.x % kWarp * kPart,
            channel = static_cast<int>(chunk) * kPixel + lane;
  const int overlap = a.tiles > 1, first_group = static_cast<int>(tile) * (kAlong - 2 * overlap) - overlap,
            q = (first_group + group) * kOwn;
  const int first = static_cast<int>(strip) * a.steps, p = first - (kRows - 1), h = p * kStrideH - axis_h.before;
  const int last = min(first + a.steps, (axis_h.extent + axis_h.before + kStrideH - 1) / kStrideH) - 1;

  Feed feed;
  feed.x = &a.x_map, feed.grad = &a.grad_map;
  feed.boxes = shared_address(smem + kSums), feed.full = feed.boxes + kStages * kBytes;
  feed.column = first_group * kColumns - kMargin, feed.window = first_group * kOwn;
  feed.plane = static_cast<int>(plane), feed.channel = static_cast<int>(chunk) * kPixel;
  feed.h = h - kSkipped, feed.p = p - kOpening, feed.from = p, feed.count = last - p + 1 + kOpening;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) mbarrier_init(feed.full + 8 * s, 1);
    fence_mbarrier_init();
#pragma unroll
    for (int s = 0; s < kStages; ++s) feed.ask();
  }
  __syncthreads();

  Walk walk(smem);
  Source& source = walk.source;
  source.height = axis_h.extent, source.width = axis_w.extent, source.outputs_w = axis_w.outputs;
  source.outputs_h =
      q < 0 ? 0
            : axis_h
                  // windows before the first would give nothing, but to the neighbour's columns while it gives too
                  .outputs;
  source.q = q, source.column = static_cast<int>(a.channels);
  opaque(source.column);
  source.inner = source.has_column(0) && source.has_column(kSeen - 1);
  source.x_row = static_cast<long long>(axis_w.extent) * source.column;
  const long long row = static_cast<long long>(plane) * axis_h.extent + h;
  walk.dx = dx + row * source.x_row + static_cast<long long>(q * kStrideW - kMoved) * source.column + channel;
  const bool idle = channel >= a.channels || group < overlap || group >= kAlong - overlap;
  walk.h = h, walk.p = p, walk.first = idle ? last + 1 : first, walk.count = axis_w.extent - q * kStrideW,
  walk.last = last;

  Taken taken;
  taken.own = smem + kSums + lane * sizeof(T), taken.full = feed.full;
  walk.begin();
#pragma unroll
  for (int s = 0; s < kOpening; ++s) {
    taken.wait();
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) {
      if (s * kStrideH + r >= kSkipped) walk.opened(Ordered(taken.row(r, group)), s * kStrideH + r - kSkipped);
    }
    taken.ring.next();
    __syncthreads();
    if (threadIdx.x == 0) feed.ask();
  }
  do {
    taken.wait();
    Ordered lines[kStrideH];
#pragma unroll
    for (int r = 0; r < kStrideH; ++r) lines[r] = Ordered(taken.row(r, group));
    Bests bests;
    if constexpr (!Config::kEarly) bests = walk.closed(lines);
    Gifts gifts(taken.windows(group));
    gifts.hold();
    taken.ring.next();
    if constexpr (Config::kEarly) {
      __syncthreads();  // all have read the box, and taken the sums of rows that gave way
      if (threadIdx.x == 0) feed.ask();
      bests = walk.closed(lines);
    }
    walk.give(gifts, bests, source.has_windows(walk.p), Divider{1, 0, 0});
    if (!Config::kEarly && threadIdx.x == 0) feed.ask();  // all have read the box behind its barriers
  } while (!walk.finish());
}
