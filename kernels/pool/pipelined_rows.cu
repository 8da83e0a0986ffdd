// Maxima over small windows that overlap, in channels-last memory, and where they stand: rows of x pass through a ring
// in shared memory.
//
// Layout:  a block owns kLanes vectors of channels of `tile` windows beside each other, and walks down, or up, some
//          rows of windows. Its columns of x come by rows into the ring (cp.async), kStrideH rows at a time and kGroups
//          times as many under way, each fetched once; columns outside of x hold the least number from the beginning. A
//          thread has kAcross neighbouring windows of a vector of kWide channels; it reads each row of the ring once
//          and keeps the maxima over what windows to come have of it.
// Needs:   pointers and channels aligned to 16 bytes; windows longer than their stride, kGroups x kStrideH rows of the
//          tile in shared memory; dilation 1, no window outside of x; planes below 2^31.
// Bound:   memory: x read once (but for rows and columns at the edge of what a block owns, which meet in the L2), y
//          written once.

#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "pool/best.cuh"
#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kReduction = 0;
  static constexpr int kWindowH = 5;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 5;
  static constexpr int kStrideW = 2;
  static constexpr int kWide = 4;
  static constexpr int kLanes = 8;
  static constexpr int kAcross = 2;
  static constexpr int kGroups = 2;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 3;
};
struct Arguments {
  long long channels;
  dnnarray::Divider chunks;
  int tile;
  dnnarray::Divider tiles;
  int rows;
  dnnarray::Divider strips;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_pipelined_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
constexpr int kWindowH = Config::kWindowH, kWindowW = Config::kWindowW, kStrideH = Config::kStrideH,
              kStrideW = Config::kStrideW;
constexpr int kWide = Config::kWide, kLanes = Config::kLanes, kAcross = Config::kAcross, kGroups = Config::kGroups;
constexpr bool kPlaces = Config::kReduction == 1;   // as in direct.cu
constexpr int kLead = (kWindowH - 1) / kStrideH;    // groups of rows before the one that completes the first window
constexpr int kTail = kWindowH - kLead * kStrideH;  // rows of a group that the last of the windows over it has
constexpr int kColumns = (kAcross - 1) * kStrideW + kWindowW;
constexpr int kChannels = kLanes * kWide;                             // of a block
constexpr int kPiece = 16 / sizeof(T), kPieces = kChannels / kPiece;  // what is copied at a time
static_assert(kWindowH > kStrideH && kWindowW > kStrideW && kAcross <= 2 && kColumns <= 8, "windows that overlap");

using Cells = Packed<T, kWide>;
#if __CUDA_ARCH__ >= 900
constexpr bool kPair = Cells::kPart == 2;
#else
constexpr bool kPair = false;
#endif

template <typename Word>
__device__ __forceinline__ Word larger_word(Word a, Word b) {
  if constexpr (Cells::kPart == 2) {
    return larger_pair(a, b, T{});
  } else {
    return larger(a, b);
  }
}

// A maximum alone, of as many elements as fill a word.
struct Most {
  static constexpr int kEach = Cells::kPart;
  using Word = decltype(Cells{}.word(0));
  Word value;

  Most() = default;
  __device__ __forceinline__ Most(Word x, int) : value(x) {}
  static __device__ __forceinline__ int repeated(int) { return 0; }
  __device__ __forceinline__ void meet(const Most& later) { value = larger_word(value, later.value); }
  __device__ __forceinline__ T element(int k) const { return Cells::of_word(value, k); }
};
template <bool kWithPlaces>
struct Kind {
  using type = Most;
};
template <>
struct Kind<true> {
  using type = Best<T, kPair, false>;
};
using Entry = Kind<kPlaces>::type;
constexpr int kEach = Entry::kEach, kEntries = kWide / kEach;

// Words i, i + 1, ... of what was read, as an entry is made of them.
__device__ __forceinline__ Entry::Word word_of(const Cells& cells, int i) {
  if constexpr (kEach == Cells::kPart) {
    return cells.word(i * kEach);
  } else {
    return N::widened(cells.at(i));
  }
}

// The maxima of the thread's windows in a row of x.
template <typename Entry>
struct Line {
  Entry at[kAcross][kEntries];

  // Of no row.
  __device__ __forceinline__ void clear() {
    Cells nothing;
    nothing.fill(N::narrowed(N::lowest()));
#pragma unroll
    for (int o = 0; o < kAcross; ++o)
#pragma unroll
      for (int i = 0; i < kEntries; ++i) at[o][i] = Entry(word_of(nothing, i), Entry::repeated(0));
  }
  // `smem` holds the row from the thread's first column on; `number` is that of the row among the block's. Two windows
  // share what lies in both.
  __device__ __forceinline__ void read(const T* smem, int number) {
    Cells cells[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) cells[c].read(smem + c * kChannels);
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const auto over = [&](int first, int last) {
        Entry all(word_of(cells[first], i), Entry::repeated(tap_code(number, first)));
#pragma unroll
        for (int c = first + 1; c < last; ++c)
          all.meet(Entry(word_of(cells[c], i), Entry::repeated(tap_code(number, c))));
        return all;
      };
      if constexpr (kAcross == 1) {
        at[0][i] = over(0, kWindowW);
      } else {
        const Entry both = over(kStrideW, kWindowW);
        at[0][i] = over(0, kStrideW);
        at[0][i].meet(both);
        at[1][i] = both;
        at[1][i].meet(over(kWindowW, kColumns));
      }
    }
  }
};

// What a thread keeps of rows that it has read, as many as make windows with rows to come: the maxima over all that the
// next window has of them, over what the one behind that has, and so on. Of equal elements the one above counts, which
// comes later where rows are read upwards.
template <typename Entry>
struct Kept {
  Line<Entry> at[kLead];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int d = 0; d < kLead; ++d) at[d].clear();
  }
  template <bool kUp>
  static __device__ __forceinline__ Line<Entry> over(const Line<Entry>& before, const Line<Entry>& later) {
    Line<Entry> both = kUp ? later : before;
#pragma unroll
    for (int o = 0; o < kAcross; ++o)
#pragma unroll
      for (int i = 0; i < kEntries; ++i) both.at[o][i].meet((kUp ? before : later).at[o][i]);
    return both;
  }
  // Takes further rows; gives the maxima over the rows of the window that is complete with them.
  template <bool kUp>
  __device__ __forceinline__ Line<Entry> with(const Line<Entry> (&rows)[kStrideH]) {
    Line<Entry> all = rows[kStrideH - kTail];
#pragma unroll
    for (int r = kStrideH - kTail + 1; r < kStrideH; ++r) all = over<kUp>(all, rows[r]);
    const Line<Entry> tail = all;
#pragma unroll
    for (int r = kStrideH - kTail - 1; r >= 0; --r) all = over<kUp>(rows[r], all);
    const Line<Entry> whole = over<kUp>(at[0], all);
#pragma unroll
    for (int d = 0; d + 1 < kLead; ++d) at[d] = over<kUp>(at[d + 1], all);
    at[kLead - 1] = tail;
    return whole;
  }
};

// What a block has of x: `columns` columns from `left` on, of which some may lie outside, and `inner` vectors of 16
// bytes from channel `channel` on.
struct Source {
  const T* x;  // the plane
  T* smem;
  int height, width, channels, left, columns, channel;

  __device__ __forceinline__ int pitch() const { return columns * kChannels; }  // of the ring's rows, in elements

  // Columns outside of x, in all rows of the ring.
  __device__ __forceinline__ void fill_beside() const {
    for (int i = threadIdx.x; i < columns * kChannels; i += blockDim.x) {
      if (static_cast<unsigned>(left + i / kChannels) < static_cast<unsigned>(width)) continue;
#pragma unroll
      for (int r = 0; r < kGroups * kStrideH; ++r) smem[r * pitch() + i] = N::narrowed(N::lowest());
    }
  }
  // Asks for row h of x.
  __device__ __forceinline__ void fetch(int slot, int h) const {
    if (static_cast<unsigned>(h) >= static_cast<unsigned>(height)) return;
    const int lane = threadIdx.x % kPieces, first = max(left, 0), last = min(left + columns, width),
              step = blockDim.x / kPieces;
    if (channel + lane * kPiece >= channels) return;
    int c = first + threadIdx.x / kPieces;
    const T* from = x + (static_cast<long long>(h) * width + c) * channels + channel + lane * kPiece;
    unsigned to = shared_address(smem + slot * pitch() + (c - left) * kChannels + lane * kPiece);
#pragma unroll 1
    for (; c < last; c += step) {
      cp_async_cg(to, from, true);
      from += step * channels;
      to += step * kChannels * sizeof(T);
    }
  }
};

// Where a maximum stands in a window that may hold nothing above what is outside of x, and of NaN, of which the last
// one counts. The window begins in row `top` and column `left`.
__device__ __forceinline__ long long place_of_special(const Source& source, int top, int left, int channel) {
  int place = max(top, 0) * source.width + max(left, 0);
#pragma unroll 1
  for (int i = 0; i < kWindowH * kWindowW; ++i) {
    const int h = top + i / kWindowW, c = left + i % kWindowW;
    if (static_cast<unsigned>(h) >= static_cast<unsigned>(source.height) ||
        static_cast<unsigned>(c) >= static_cast<unsigned>(source.width))
      continue;
    const A x = N::widened(source.x[static_cast<long long>(h * source.width + c) * source.channels + channel]);
    if (x != x) place = h * source.width + c;
  }
  return place;
}

// What a thread has of y: `count` windows of a row, `column` elements apart, from column `left` of x on.
struct Target {
  T* y;
  long long* indices;
  int column, count, left, channel;

  __device__ __forceinline__ void move(long long elements) {
    y += elements;
    if (kPlaces) indices += elements;
  }
};

// Where they stand, of windows that begin in row `top` and column `left`.
template <typename Entry>
__device__ __forceinline__ void put_places(const Entry (&best)[kEntries], const Source& source, const Target& target,
                                           int at, int top, int number, int left) {
  Vec<long long, kWide> indices;
  const int base = (top - number) * source.width + target.left;
  typename Entry::Watch special = 0;
#pragma unroll
  for (int i = 0; i < kEntries; ++i) best[i].watch(special);
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    const int code = best[j / kEach].where(j % kEach);
    indices.at[j] = base + code / tap_code(1, 0) * source.width + code % tap_code(1, 0);
  }
  store_wide(target.indices + at, indices);
  if (!Entry::is_special(special)) return;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
    const A found = best[j / kEach].at(j % kEach);
    if (found == N::lowest() || found != found)
      target.indices[at + j] = place_of_special(source, top, left, target.channel + j);
  }
}

// The results of the windows that begin in row `top` of x, the block's row `number`.
template <typename Entry>
__device__ __forceinline__ void put(const Line<Entry>& best, const Source& source, const Target& target, int top,
                                    int number) {
#pragma unroll
  for (int o = 0; o < kAcross; ++o) {
    if (o >= target.count) return;
    Vec<T, kWide> y;
#pragma unroll
    for (int j = 0; j < kWide; ++j) y.at[j] = best.at[o][j / kEach].element(j % kEach);
    store(target.y + o * target.column, y);
    if constexpr (kPlaces)
      put_places(best.at[o], source, target, o * target.column, top, number, target.left + o * kStrideW);
  }
}

// The rows of windows [begin, end) of a block, from the last on where it walks up.
struct Walk {
  int begin, end, before, outputs_w;
  bool up;

  __device__ __forceinline__ void run(const Source& source, Target target, const T* cells) const {
    constexpr int kSpare = (kLead + 1) * kStrideH - kWindowH;  // rows of the first groups that no window has
    const int lowest = begin * kStrideH - before, highest = (end - 1) * kStrideH - before + kWindowH - 1;  // of x
    const int rows = highest - lowest + 1 + kSpare, step = up ? -1 : 1, origin = lowest - kSpare,
              start = up ? highest + kSpare : origin;
    const auto wanted = [&](int i) {
      return i >= kSpare && i < rows && static_cast<unsigned>(start + step * i) < static_cast<unsigned>(source.height);
    };
    const auto ask = [&](int slot, int i) {
#pragma unroll
      for (int r = 0; r < kStrideH; ++r) {
        if (wanted(i + r)) source.fetch(slot * kStrideH + r, start + step * (i + r));
      }
      cp_async_commit_group();
    };
#pragma unroll
    for (int g = 0; g < kGroups - 1; ++g) ask(g, g * kStrideH);
    source.fill_beside();

    Kept<Entry> kept;
    kept.clear();
    const int row = step * outputs_w * source.channels;
    if (up) target.move(static_cast<long long>(begin + 1 - end) * row);
    int slot = 0, top = up ? highest + 1 - kWindowH : lowest;  // of the window that is completed next
#pragma unroll 1
    for (int i = 0; i < rows; i += kStrideH) {
      cp_async_wait_group<kGroups - 2>();
      __syncthreads();
      ask(slot == 0 ? kGroups - 1 : slot - 1, i + (kGroups - 1) * kStrideH);
      Line<Entry> fresh[kStrideH];
#pragma unroll
      for (int r = 0; r < kStrideH; ++r) {
        if (wanted(i + r)) {
          fresh[r].read(cells + (slot * kStrideH + r) * source.pitch(), start + step * (i + r) - origin);
        } else {
          fresh[r].clear();
        }
      }
      const Line<Entry> whole = kPlaces && up ? kept.with<true>(fresh) : kept.with<false>(fresh);
      if (i >= kLead * kStrideH) {
        put(whole, source, target, top, top - origin);
        target.move(row);
        top += step * kStrideH;
      }
      slot = slot + 1 == kGroups ? 0 : slot + 1;
    }
  }
};

// Blocks of a multiprocessor that registers are kept for; a fourth would cost a spill before sm_90.
constexpr int kBlocks = __CUDA_ARCH__ < 900 && Config::kBlocks == 4 && kWindowH * kWindowW > 16 ? 3 : Config::kBlocks;

// Fastest of blocks are the chunks of kChannels channels, then the tiles along a row of windows, then the strips of
// `rows` rows of windows, then the batch. Every other strip is walked up, so that the rows of x which two strips share
// are read at about the same time, and once from memory.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem[];
  const Split chunk = a.chunks(blockIdx.x), along = a.tiles(chunk.quotient), down = a.strips(along.quotient);
  const int rows = a.rows, tile = a.tile, begin = down.rest * rows, first_q = along.rest * tile,
            size = static_cast<int>(a.channels);
  const long long channels =
      size;  // read once, as the extents: fields that are read at their uses cost eight registers
  const int height = a.h.extent, width = a.w.extent, outputs_h = a.h.outputs, outputs_w = a.w.outputs;
  const Walk walk{begin, min(begin + rows, outputs_h), a.h.before, outputs_w, down.rest % 2 != 0};
  const int columns = (tile - 1) * kStrideW + kWindowW, left = first_q * kStrideW - a.w.before;
  const Source source{x + down.quotient * height * width * channels,
                      reinterpret_cast<T*>(smem),
                      height,
                      width,
                      size,
                      left,
                      columns,
                      chunk.rest * kChannels};
  const int own = threadIdx.x / kLanes * kAcross, q = first_q + own, lane = threadIdx.x % kLanes * kWide,
            channel = source.channel + lane;
  const int windows = channel < size && own < tile ? min(tile - own, outputs_w - q) : 0;
  const long long to = ((down.quotient * outputs_h + begin) * outputs_w + q) * channels + channel;
  const Target target{y + to, kPlaces ? indices + to : nullptr, size, min(windows, kAcross), left + own * kStrideW,
                      channel};
  const T* cells = source.smem + (own < tile ? own : 0) * kStrideW * kChannels + lane;
  walk.run(source, target, cells);
}
