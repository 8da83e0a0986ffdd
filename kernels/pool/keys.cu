// Gradient of the maximum over windows of up to 5 x 5 that overlap, in one pass, for half types: dx = the sum of the gradients of the windows whose
// maximum stands here.
//
// An element of x and its place make one integer (keys.cuh), so that the maximum of integers finds a window's place: first down the columns, then
// along the rows. Where a maximum is infinite or a NaN, the windows are looked at again, element by element.
//
// Layout:  channels-first: a thread owns kColumns columns under kOwn windows; channels-last: the same of 2 neighbouring channels. It walks down
//          `steps` rows of tiles as in tiles.cu, with the keys of the rows of x that windows share, and with the rows of windows that cover a tile,
//          in registers: each in its slot of a ring, so that nothing is moved.
// Needs:   half types; pointers and W (or the channels) aligned to kWide elements, of which there are 2 or more, grad to kPiece; dilation 1; planes
//          below 2^31; no more than 2,000 rows a thread.
// Bound:   memory: x and grad read about once, dx written once; integer instructions.

#include "dnnarray/keys.cuh"
#include "dnnarray/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kLast = false;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 1;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 1;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 8;
  static constexpr int kOwn = 8;
  static constexpr int kPiece = 8;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_keys_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr bool kLast = Config::kLast;
constexpr int kWide = Config::kWide, kOwn = Config::kOwn, kPiece = Config::kPiece, kBefore = Config::kBefore, kChannels = kLast ? 2 : 1;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW, kStrideW = Config::kStrideW;

// Windows beside the own ones, and the columns that all of them look at, counted from the first own column on; in channels-first whole pairs.
constexpr int kLeft = (kWindowW - 1 - kBefore) / kStrideW, kRight = (kBefore + kStrideW - 1) / kStrideW, kWindows = kLeft + kOwn + kRight;
constexpr int kColumns = kOwn * kStrideW, kSeen = kLeft * kStrideW + kBefore, kEnd = (kOwn - 1 + kRight) * kStrideW - kBefore + kWindowW;
constexpr int kBegin = kLast ? -kSeen : -(kSeen + kSeen % 2), kStop = kLast ? kEnd : kEnd > kColumns ? kEnd + kEnd % 2 : kColumns;
constexpr int kWords = kLast ? kStop - kBegin : (kStop - kBegin) / 2, kCells = 2 * kWords;
static_assert(kStop - kBegin <= 32, "a tag has five bits for the column");

// Rows of windows over a tile; rows of x that a window does not share with the one above; steps after which the slots of the ring come again.
constexpr int kRows = (kWindowH - 1) / kStrideH + 1, kNew = kStrideH < kWindowH ? kStrideH : kWindowH, kKept = kWindowH - kNew;
constexpr int kCycle = kWindowH % kNew == 0 ? kWindowH / kNew : kWindowH;
static_assert(kRows <= kCycle);

constexpr int cell_of(int column, int k) { return kLast ? 2 * (column - kBegin) + k : column - kBegin; }
constexpr int tag_of(int column) { return 31 - (column - kBegin); }  // of equal maxima the first counts
constexpr int kRowTag = 32;

using Pairs = unsigned[kWords];
using Keys = int[kCells];

// What the windows of a row say: their gradient, and the tag of the maximum less that of their first row.
struct Row {
  float grad[kWindows][kChannels];
  int code[kWindows][kChannels];
};

struct Image {
  const T* x;  // the first own column, in row 0
  int height, width, column, w;
  long long row;

  __device__ __forceinline__ bool inside(int h, int c) const {
    return static_cast<unsigned>(h) < static_cast<unsigned>(height) && static_cast<unsigned>(w + c) < static_cast<unsigned>(width);
  }
  template <int N>
  __device__ __forceinline__ void fetch(Pairs& words, int h, int c) const {
    Packed<T, N> part;
    part.fill(lowest_half(T{}));
    if (inside(h, c)) part.read(x + h * row + static_cast<long long>(c) * column);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) words[cell_of(c, 0) / 2 + j] = part.v.at[j];
  }
  __device__ __forceinline__ void read(Pairs& words, int h) const {
#pragma unroll
    for (int c = kBegin; c < kStop; c += kLast ? 1 : 2) {
      if (kLast || c < 0 || c >= kColumns) {
        fetch<2>(words, h, c);
      } else if (c % kWide == 0) {
        fetch<kWide>(words, h, c);
      }
    }
  }
};

__device__ __forceinline__ void keys_of(Keys& keys, const Pairs& words, unsigned tag) {
#pragma unroll
  for (int j = 0; j < kCells; ++j) keys[j] = key_of(one_zero(words[j / 2], T{}), j % 2, tag);
}

// The tap with the maximum of the window whose tap 0 is at (top, left), as kRowTag r + s: the first of equal ones, the last NaN.
__device__ __forceinline__ int exact_place(const T* x, int top, int left, const Image& image) {
  float best = 0;
  int at = -1;
#pragma unroll 1
  for (int i = 0; i < kWindowH * kWindowW; ++i) {
    const int r = i / kWindowW, s = i % kWindowW;
    if (!image.inside(top + r, left + s - image.w)) continue;
    const float value = widen(x[(top + r) * image.row + static_cast<long long>(left + s - image.w) * image.column]);
    if (at >= 0 && !wins(value, best)) continue;
    best = value;
    at = r * kRowTag + s;
  }
  return at;
}

// Which windows of a row have their maximum where; `top` is the row of their tap 0, `tag` that row's.
__device__ __forceinline__ void find(Row& row, const Keys (&keys)[kWindowH], const Image& image, int top, int tag) {
  Keys down;
#pragma unroll
  for (int j = 0; j < kCells; ++j) {
    down[j] = keys[0][j];
#pragma unroll
    for (int r = 1; r < kWindowH; ++r) down[j] = max(down[j], keys[r][j]);
    down[j] += tag_of(kBegin + (kLast ? j / 2 : j));
  }
  unsigned nearest = kFar<T>;
#pragma unroll
  for (int b = 0; b < kWindows; ++b)
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      const int left = (b - kLeft) * kStrideW - kBefore;
      int best = down[cell_of(left, k)];
#pragma unroll
      for (int s = 1; s < kWindowW; ++s) best = max(best, down[cell_of(left + s, k)]);
      nearest = min(nearest, distance_to_infinity<T>(best));
      row.code[b][k] = (best & 0xffff) - tag;
    }
  if (nearest >= kFar<T>) return;
#pragma unroll 1
  for (int n = 0; n < kWindows * kChannels; ++n) {  // short rather than fast: codes are in registers, and not found by number
    const int left = (n / kChannels - kLeft) * kStrideW - kBefore;
    const int code = tag_of(left) - exact_place(image.x + n % kChannels, top, image.w + left, image);
#pragma unroll
    for (int b = 0; b < kWindows; ++b)
#pragma unroll
      for (int k = 0; k < kChannels; ++k) row.code[b][k] = n == b * kChannels + k ? code : row.code[b][k];
  }
}

// The gradients of windows b to b + N - 1 (channels-last: of two channels of window b); 0 where there is no window.
template <int N>
__device__ __forceinline__ void fill(Row& row, const T* grad, int b, bool there) {
  Vec<T, N> part{};
  if constexpr (N > 1) {
    Packed<T, N> words;
    words.fill(T{});
    if (there) words.read(grad);
    memcpy(&part, &words, sizeof part);
  } else {
    part.at[0] = T{};
    if (there) part.at[0] = *grad;
  }
  float values[N];
  widen_all<T>(values, part);
#pragma unroll
  for (int j = 0; j < N; ++j) row.grad[kLast ? b : b + j][kLast ? j : 0] = values[j];
}

// Those of row p of windows, of which q is the first own one; `grad` points at it in row 0.
__device__ __forceinline__ void gradients(Row& row, const T* grad, int p, int q, const Axis<false>& h, const Axis<false>& w, int column) {
  const T* from = grad + static_cast<long long>(p) * w.outputs * column;
#pragma unroll
  for (int b = 0; b < kWindows; ++b) {
    const int i = b - kLeft;
    const bool there = static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs) && static_cast<unsigned>(q + i) < static_cast<unsigned>(w.outputs);
    const T* at = from + static_cast<long long>(i) * column;
    if constexpr (kLast) {
      fill<2>(row, at, b, there);
    } else if (i < 0 || i >= kOwn) {
      fill<1>(row, at, b, there);
    } else if (i % kPiece == 0) {
      fill<kPiece>(row, at, b, there);
    }
  }
}

// The gradient of the element in row i of the tile and own column c; the newest row of windows is in slot `newest`.
__device__ __forceinline__ float gradient(const Row (&rows)[kCycle], int newest, int i, int c, int k) {
  float sum = 0;
#pragma unroll
  for (int a = kRows - 1; a >= 0; --a)
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int r = i + a * kStrideH, s = c + kBefore - (b - kLeft) * kStrideW;
      if (r >= kWindowH || s < 0 || s >= kWindowW) continue;
      const Row& row = rows[(newest + kCycle - a) % kCycle];
      if (row.code[b][k] == tag_of(c) - r * kRowTag) sum += row.grad[b][k];
    }
  return sum;
}

// The rows of dx under a tile whose first row is `top`.
__device__ __forceinline__ void put(T* dx, const Row (&rows)[kCycle], int newest, int top, const Image& image) {
#pragma unroll
  for (int i = 0; i < kStrideH; ++i) {
    constexpr int kStep = kLast ? 1 : kWide;
#pragma unroll
    for (int c = 0; c < kColumns; c += kStep) {
      float values[kStep * kChannels];
#pragma unroll
      for (int j = 0; j < kStep * kChannels; ++j) values[j] = gradient(rows, newest, i, kLast ? c : c + j, kLast ? j : 0);
      if (image.inside(top + i, c)) store(dx + (top + i) * image.row + static_cast<long long>(c) * image.column, narrow_all<T>(values));
    }
  }
}

// A thread on its way down: row p of windows comes next, whose tap 0 is in row `top` of x and has the tag `tag`.
struct Walk {
  Image image;
  const T* grad;
  T* dx;
  Axis<false> h, w;
  int q, first, past, p, top, tag;
  Keys keys[kWindowH];
  Row rows[kCycle];
  Pairs ahead[kNew];  // what the next row of windows sees first, on its way

  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int r = 0; r < kNew; ++r) image.read(ahead[r], top + kKept + r);
  }
  // One row of windows, and the tile that it is the last one over.
  template <int kSlot>
  __device__ __forceinline__ bool step() {
    if (p >= past || top >= h.extent) return false;
#pragma unroll
    for (int r = 0; r < kNew; ++r) keys_of(keys[(kSlot * kNew + kKept + r) % kWindowH], ahead[r], tag - (kKept + r) * kRowTag);
    const int here = top;
    top += kStrideH;
    fetch();
    gradients(rows[kSlot], grad, p, q, h, w, image.column);
    if (static_cast<unsigned>(p) < static_cast<unsigned>(h.outputs)) find(rows[kSlot], keys, image, here, tag);
    if (p >= first) put(dx, rows, kSlot, here, image);
    ++p, tag -= kNew * kRowTag;
    return true;
  }
  // As many as the ring has slots.
  template <int kSlot = 0>
  __device__ __forceinline__ bool turn() {
    if (!step<kSlot>()) return false;
    if constexpr (kSlot + 1 < kCycle) {
      return turn<kSlot + 1>();
    } else {
      return true;
    }
  }
};

// Arguments as in tiles.cu; `steps` tiles a thread.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, const T* __restrict__ gmem_x, T* __restrict__ gmem_dx, long long total, long long inner,
                   long long by_inner, long long groups, long long by_group, long long strips, long long by_strip, long long height,
                   long long h_padding, long long width, long long w_padding, long long steps) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (thread >= total) return;
  const Share<Config> share(thread, inner, by_inner, groups, by_group, strips, by_strip);
  const Axis<false> h(height, static_cast<long long>(kWindowH) << 32 | kStrideH, 1, h_padding);
  const Axis<false> w(width, static_cast<long long>(kWindowW) << 32 | kStrideW, 1, w_padding);
  const int q = share.group * kOwn, column = share.column, first = share.strip * static_cast<int>(steps), p = first - (kRows - 1);
  const long long own = (share.plane * h.extent * w.extent + q * kStrideW) * column + share.channel;
  const T* grad = gmem_grad + (share.plane * h.outputs * w.outputs + q) * column + share.channel;
  const Image image{gmem_x + own, h.extent, w.extent, column, q * kStrideW, static_cast<long long>(w.extent) * column};
  Walk walk{image, grad, gmem_dx + own, h, w, q, first, first + static_cast<int>(steps), p, p * kStrideH - h.before, 0xffe0, {}, {}, {}};
  walk.fetch();
#pragma unroll
  for (int r = 0; r < kKept; ++r) {
    Pairs words;
    image.read(words, walk.top + r);
    keys_of(walk.keys[r], words, walk.tag - r * kRowTag);
  }
#pragma unroll 1
  while (walk.turn()) {
  }
}
