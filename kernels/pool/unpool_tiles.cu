// Unpooling where what is put back lies near where it came from: y = 0, but y[n, c, indices[n, c, i]] = x[n, c, i], the
// last i where several name a place.
//
// Layout:  arrays are (outer, place, channels), channels 1 in channels-first. A block owns kGroup channels of a tile of
//          y, and the part of x that lies there. At home: where y has kCellH x kCellW places for an element of x and
//          all elements of the block keep to theirs, each thread writes the cells of its own elements, kOwn at a time,
//          at once. Else the block reads the indices of its part of x and of one row and column to each side, and notes
//          in shared memory for each place the last i that names it (a maximum of integers, so that the order of the
//          threads does not show), beside two bytes of the element; a larger element takes a word for each two bytes.
//          Then it writes its tile by vectors. What it was, and whether one of its indices names a place of another
//          block, is noted in gmem_notes, one word a block: unpool_shared.cu does again the planes in which a block
//          cannot have seen what names its places. An index that is no position is left out.
// Needs:   pointers and channels (in channels-first the widths) aligned to the vectors; what a block looks at below
//          65,535 places, planes of y below 2^31 elements, a tile's rows of all channels too; dynamic shared memory of
//          twice an element for each place of a tile and channel.
// Bound:   memory: indices and x read once (what blocks share meets in the L2), y written once.

#include "pool/cut.cuh"
#include "pool/notes.cuh"
#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr bool kLast = true;
  static constexpr int kCellH = 2;
  static constexpr int kCellW = 2;
  static constexpr bool kRagged = false;
  static constexpr int kGroup = 32;
  static constexpr int kOwn = 2;
  static constexpr int kPiece = 2;
  static constexpr int kWide = 4;
  static constexpr int kFlight = 2;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 6;
};
struct Arguments {
  int channels;
  dnnarray::Divisor groups;
  dnnarray::Divisor across;
  dnnarray::Divisor down;
  dnnarray::Cut h;
  dnnarray::Cut w;
  int room;
  dnnarray::Divisor row;
  dnnarray::Divisor seen;
  dnnarray::Divisor width;
};
#define DNNARRAY_ENTRY pool_unpool_tiles_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Index = Config::Index;
constexpr bool kLast = Config::kLast, kCells = Config::kCellH > 0,
               kRagged = Config::kRagged;  // whether only part of the last cells is in y
constexpr int kCellH = Config::kCellH, kCellW = Config::kCellW, kGroup = Config::kGroup, kOwn = Config::kOwn,
              kPiece = Config::kPiece;
constexpr int kWide = Config::kWide, kThreads = Config::kThreads,
              kSpan = kLast ? 1 : kOwn;  // elements beside each other in a row
constexpr int kFlight = Config::kFlight, kSeen = kLast ? 2 : 4, kParts = sizeof(T) / 2;
constexpr int kBlocks =
    __CUDA_ARCH__ >= 1000 && Config::kBlocks > 4 ? 4 : Config::kBlocks;  // more would cost spills there
constexpr int kVectors = kLast ? kGroup / kOwn : 1;                      // of a block's channels
struct Parts {
  unsigned short at[kParts];
};

// What a block looks at along an axis.
struct Reach {
  int begin, length;  // its tile of y
  int seen, lead,
      own;   // where it begins to look at x, how many of these come before its own ones, and how many these are
  int next;  // the extent of the tile beside it

  __device__ __forceinline__ Reach(const Cut& cut, int k)
      : begin(cut.y_at(k)),
        length(cut.tile(k).length()),
        seen(cut.seen(k).begin),
        lead(cut.x_at(k) - seen),
        own(cut.own(k).length()),
        next(cut.by_tile.n) {}
  __device__ __forceinline__ bool owns(int p) const {
    return static_cast<unsigned>(p - lead) < static_cast<unsigned>(own);
  }
  // What is noted of own element p, counted from the first that is seen, which names y[at].
  __device__ __forceinline__ unsigned away(int at, int p) const {
    const int local = at - begin;
    if (static_cast<unsigned>(local) < static_cast<unsigned>(length)) return 0;
    const bool beside = local < 0 ? p == lead && local >= -next : p == lead + own - 1 && local < length + next;
    return beside ? kNamesNext : kNamesFar;
  }
};

// An index as a place; what is none as -1, or as more than there are.
__device__ __forceinline__ int place_of(Index index) {
  const long long named = static_cast<long long>(index);
  return named >> 31 == 0 ? static_cast<int>(named) : -1;
}

// Some elements of x and what they name; places count from the first one's cell.
struct Item {
  Vec<T, kOwn> x;
  int named[kOwn];

  // Whether each names a place of its own cell, of which `across` columns exist of the last one.
  __device__ __forceinline__ bool at_home(int y_width, int across) const {
    bool home = true;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const unsigned here = kRagged && (kLast || e == kOwn - 1) ? across : kCellW;
      bool found = false;
#pragma unroll
      for (int r = 0; r < kCellH; ++r)
        found = found || static_cast<unsigned>(named[e] - r * y_width - (kLast ? 0 : e * kCellW)) < here;
      home = home && found;
    }
    return home;
  }
  // What stands from column `s` of the cells on, in the row that begins with place `row`.
  __device__ __forceinline__ Vec<T, kPiece> results(int row, int s) const {
    Vec<T, kPiece> y;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      const int e = kLast ? k : (s + k) / max(kCellW, 1);
      const T nothing{};
      y.at[k] = named[e] == row + (kLast ? s : s + k) ? x.at[e] : nothing;
    }
    return y;
  }
};

struct Block {
  Cut h, w;
  const T* x;  // from here on everything of this batch item and these channels
  const Index* indices;
  T* y;
  int channels, mine;  // in memory, and how many of them are the block's
  int down, across;    // which tile

  __device__ __forceinline__ long long of_x(int p, int q) const {
    return (static_cast<long long>(p) * w.x + q) * channels;
  }
  __device__ __forceinline__ long long of_y(int p, int q) const {
    return (static_cast<long long>(p) * w.y + q) * channels;
  }

  // --- at home ---

  // Where an item stands, from the block's first cell on.
  struct Spot {
    int p, q, c;
    bool there;
  };
  __device__ __forceinline__ Spot spot(int t, Divisor by_row, Range rows, Range columns) const {
    const int p = by_row.quotient(t), rest = t - p * static_cast<int>(by_row.n);
    const int q = kLast ? rest / kVectors : rest * kOwn, c = kLast ? t % kVectors * kOwn : 0;
    return {p, q, c, p < rows.length() && q < columns.length() && c < mine};
  }

  __device__ __forceinline__ Item read(const Spot& at, const T* own_x, const Index* own_indices) const {
    const int from = at.there ? (at.p * w.x + at.q) * channels + at.c : 0;
    Item item;
    const Vec<Index, kOwn> named = load_wide<Index, kOwn>(own_indices + from);
    item.x = load<T, kOwn>(own_x + from);
#pragma unroll
    for (int e = 0; e < kOwn; ++e) item.named[e] = place_of(named.at[e]);
    return item;
  }

  // Writes the cells of an item; whether its elements keep to them.
  __device__ __forceinline__ bool put_home(Item& item, const Spot& at, T* own_y, int first_row,
                                           int first_column) const {
    const int row = at.p * kCellH, column = at.q * kCellW, base = (first_row + row) * w.y + first_column + column;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) item.named[e] -= base;
    const int here = w.y - first_column - column;  // columns that exist
    if (!item.at_home(w.y, min(kCellW, here - (kSpan - 1) * kCellW))) return false;
    T* const to = own_y + (row * w.y + column) * channels + at.c;
    constexpr int kStep = kLast ? 1 : kPiece;
#pragma unroll
    for (int r = 0; r < kCellH; ++r) {
      if (kRagged && first_row + row + r >= h.y) break;
#pragma unroll
      for (int s = 0; s < kSpan * kCellW; s += kStep) {
        if (!kRagged || s < here) store(to + (r * w.y + s) * channels, item.results(r * w.y, s));
      }
    }
    return true;
  }

  // Zeros where no cell is, behind the last column and below the last row of cells.
  __device__ __forceinline__ void clear_margins(T* own_y, Range rows, Range columns) const {
    const int cells_h = h.own(down).length() * kCellH, cells_w = w.own(across).length() * kCellW;
    if (cells_h >= rows.length() && cells_w >= columns.length()) return;
    for (int t = threadIdx.x; t < rows.length() * columns.length(); t += kThreads) {
      const int r = t / columns.length(), s = t % columns.length();
      if (r < cells_h && s < cells_w) continue;
      const T nothing{};
      for (int c = 0; c < mine; ++c) own_y[(r * w.y + s) * channels + c] = nothing;
    }
  }

  // Whether that was all.
  __device__ __forceinline__ bool put_at_home(Divisor by_row) const {
    const Range rows = h.own(down), columns = w.own(across);
    const int count = rows.length() * static_cast<int>(by_row.n), first_row = h.y_at(down),
              first_column = w.y_at(across);
    const long long from = of_x(rows.begin, columns.begin);
    T* const own_y = y + of_y(first_row, first_column);
    for (int first = threadIdx.x; first < count; first += kThreads * kFlight) {
      Item items[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        items[f] = read(spot(first + f * kThreads, by_row, rows, columns), x + from, indices + from);
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        const Spot at = spot(first + f * kThreads, by_row, rows, columns);
        if (at.there && !put_home(items[f], at, own_y, first_row, first_column)) return false;
      }
    }
    clear_margins(own_y, h.tile(down), w.tile(across));
    return true;
  }

  // --- by marks ---

  // Raises the marks of the places that are named; returns what is to be noted.
  __device__ __forceinline__ unsigned mark(unsigned* smem_marks, int room, Divisor by_seen, Divisor by_width) const {
    const Reach side_h(h, down), side_w(w, across);
    const int count = h.seen(down).length() * static_cast<int>(by_seen.n) * kGroup, columns = w.seen(across).length(),
              y_size = h.y * w.y;
    const T* const seen_x = x + of_x(side_h.seen, side_w.seen);
    const Index* const seen_indices = indices + of_x(side_h.seen, side_w.seen);
    unsigned note = 0;
    for (int first = threadIdx.x; first < count; first += kThreads * kSeen) {
      int named[kSeen];
      Parts reg_x[kSeen];
#pragma unroll
      for (int f = 0; f < kSeen; ++f) {
        const int t = first + f * kThreads, c = t % kGroup, i = t / kGroup, p = by_seen.quotient(i),
                  q = i - p * static_cast<int>(by_seen.n);
        named[f] = -1;
        if (t >= count || c >= mine || q >= columns) continue;
        const int at = (p * w.x + q) * channels + c;
        named[f] = place_of(seen_indices[at]);
        const T element = seen_x[at];
        memcpy(&reg_x[f], &element, sizeof element);
      }
#pragma unroll
      for (int f = 0; f < kSeen; ++f) {
        if (named[f] < 0 || named[f] >= y_size) continue;
        const int t = first + f * kThreads, i = t / kGroup, p = by_seen.quotient(i),
                  q = i - p * static_cast<int>(by_seen.n);
        const int row = by_width.quotient(named[f]), column = named[f] - row * w.y;
        const unsigned away = side_h.away(row, p) | side_w.away(column, q);
        if (away == 0) {
          const int local = (row - side_h.begin) * side_w.length + column - side_w.begin;
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            atomicMax(smem_marks + (part * room + local) * kGroup + t % kGroup,
                      static_cast<unsigned>(i + 1) << 16 | reg_x[f].at[part]);
          }
        } else if (side_h.owns(p) && side_w.owns(q)) {
          note |= away;
        }
      }
    }
    return note;
  }

  // kWide results from place and channel `t` on.
  __device__ __forceinline__ Vec<T, kWide> results(const unsigned* smem_marks, int t, int room) const {
    Parts elements[kWide];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Vec<unsigned, kWide> words = load_wide<unsigned, kWide>(smem_marks + part * room * kGroup + t);
#pragma unroll
      for (int j = 0; j < kWide; ++j) elements[j].at[part] = static_cast<unsigned short>(words.at[j]);
    }
    Vec<T, kWide> y;
    memcpy(&y, elements, sizeof y);
    return y;
  }

  // All places of the tile, of which there is room for `room`; returns what is to be noted.
  __device__ __forceinline__ unsigned put_by_marks(int room, Divisor by_seen, Divisor by_width) const {
    extern __shared__ __align__(16) unsigned smem_marks[];
    const Range rows = h.tile(down), columns = w.tile(across);
    constexpr int kClear = 16 / sizeof(unsigned);
    for (int t = threadIdx.x * kClear; t < kParts * room * kGroup; t += kThreads * kClear)
      store(smem_marks + t, Vec<unsigned, kClear>{});
    __syncthreads();
    unsigned note = mark(smem_marks, room, by_seen, by_width);
    note =
        (__syncthreads_or(note & kNamesNext) ? kNamesNext : 0u) | (__syncthreads_or(note & kNamesFar) ? kNamesFar : 0u);
    T* const own_y = y + of_y(rows.begin, columns.begin);
    for (int t = threadIdx.x * kWide; t < rows.length() * columns.length() * kGroup; t += kThreads * kWide) {
      const int c = t % kGroup, i = t / kGroup, r = columns.length() == w.y ? 0 : i / columns.length(),
                s = i - r * columns.length();
      if (c < mine) store(own_y + (r * w.y + s) * channels + c, results(smem_marks, t, room));
    }
    return note;
  }
};

// The block's number is divided by the groups of channels, the tiles across and those down. Of each axis: extents of x
// and y; the number of tiles and their extent in y; rows of y times what, and divided by what, are rows of x. `room` is
// what a block has for places, by_row counts a tile's items in a row, by_seen the columns that a block looks at,
// by_width those of y. gmem_notes is written where there are several tiles.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Index* __restrict__ indices, T* __restrict__ y,
                   unsigned* __restrict__ notes, const __grid_constant__ Arguments a) {
  const int channels = a.channels;
  const Cut h = a.h, w = a.w;
  const unsigned all = a.groups.quotient(blockIdx.x), rows = a.across.quotient(all);
  const unsigned plane = a.down.quotient(rows);
  const int group = blockIdx.x - all * a.groups.n, across = all - rows * w.chunks, down = rows - plane * h.chunks,
            c = group * kGroup;
  const long long size_x = static_cast<long long>(h.x) * w.x * channels,
                  size_y = static_cast<long long>(h.y) * w.y * channels;
  const long long from = plane * size_x + c, to = plane * size_y + c;
  const Block block{h, w, x + from, indices + from, y + to, channels, min(channels - c, kGroup), down, across};

  unsigned note = kAtHome;
  bool away = !kCells;
  if constexpr (kCells) away = __syncthreads_or(!block.put_at_home(a.row));
  if (away) note = block.put_by_marks(a.room, a.seen, a.width);
  if (h.chunks * w.chunks > 1 && threadIdx.x == 0) {
    notes[(static_cast<long long>(plane) * a.groups.n + group) * (h.chunks * w.chunks) + down * w.chunks + across] =
        note;
  }
}
