// Gradient of maximum pooling of half types with windows of up to 5 x 5 in channels-last memory, as
// small_windows_gradient.cu, two channels at once: dx = the sum over the windows that cover an element of their
// gradient, if their maximum stands here.
//
// A pair of gradients is taken where a pair of codes equals the tap that stands here (a comparison and a bitwise and),
// and up to two such pairs of each of two pairs of channels are added to sums in float by a matrix product with ones on
// the diagonal: the fragments of A and of the sums hold the same elements in the same lanes. An infinity or a NaN times
// a zero beside the diagonal would spoil its neighbours, so a warp that has met one adds by itself.
// Layout:  as in small_windows_gradient.cu; all lanes of a warp go along to the end.
// Needs:   as small_windows_gradient.cu; kWide a multiple of 4; what was saved of a window is its tap, as a byte.
// Bound:   memory: grad and what was saved read about once, dx written once.

#include "dnnarray/core/reduce.cuh"
#include "pool/strip.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kLast = true;
  static constexpr int kWindowH = 3;
  static constexpr int kStrideH = 2;
  static constexpr int kWindowW = 3;
  static constexpr int kStrideW = 2;
  static constexpr int kBefore = 1;
  static constexpr int kWide = 8;
  static constexpr int kGroup = 1;
  static constexpr int kPiece = 8;
  static constexpr int kSteps = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Partition among;
  dnnarray::Side h;
  dnnarray::Side w;
};
#define DNNARRAY_ENTRY pool_small_windows_gradient_mma_default
#endif

using namespace dnnarray;
using T = Config::Element;
static_assert(Config::kLast, "channels lie side by side");
constexpr int kWide = Config::kWide, kPairs = kWide / 2, kSteps = Config::kSteps, kBefore = Config::kBefore;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;

// As in small_windows_gradient.cu: rows of windows over a tile; windows over the columns under the thread's own one,
// which is number kLeft.
constexpr int kRows = (kWindowH - 1) / kStrideH + 1, kLeft = (kWindowW - 1 - kBefore) / kStrideW,
              kRight = (kBefore + kStrideW - 1) / kStrideW;
constexpr int kWindows = kLeft + 1 + kRight, kMost = (kWindowW - 1) / kStrideW + 1;  // of which so many cover a column
constexpr unsigned kNowhere = 0xff;  // the code of a window that does not exist

// Which tap of window b stands at column c; none if it is not below kWindowW.
__device__ constexpr unsigned column_of(int c, int b) {
  return static_cast<unsigned>(c + kBefore - (b - kLeft) * kStrideW);
}

// What the windows of a row say, by pairs of channels: gradients, and codes in halves.
struct Row {
  unsigned grad[kWindows][kPairs], code[kWindows][kPairs];
  unsigned special;  // not zero, but for the signs, if a gradient is infinite or no number

  // The gradients of a pair that go to column c of the tile, which is in row r of these windows; of the n-th window
  // over it.
  __device__ __forceinline__ unsigned term(int r, int c, int pair, int n) const {
    unsigned found = 0;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const unsigned s = column_of(c, b);
      if (s < kWindowW && n-- == 0)
        found =
            grad[b][pair] & equal_pair(code[b][pair], static_cast<unsigned>(tap_code(r, s)) * 0x10001u, float16_t{});
    }
    return found;
  }
};

struct Source {
  const T* grad;               // of the own window, in row 0
  const unsigned char* saved;  // likewise
  int heights, widths, q, column;

  // A window that does not exist gives nothing.
  __device__ __forceinline__ Row read(int p) const {
    Row row;
    row.special = 0;
#pragma unroll
    for (int b = 0; b < kWindows; ++b) {
      const int i = b - kLeft;
      const bool there = static_cast<unsigned>(p) < static_cast<unsigned>(heights) &&
                         static_cast<unsigned>(q + i) < static_cast<unsigned>(widths);
      const long long at = (static_cast<long long>(p) * widths + i) * column;
      Packed<T, kWide> reg_grad;
      Codes<unsigned char, kWide> reg_saved;
      reg_grad.fill(T{});
      reg_saved.fill(kNowhere);
      if (there) {
        reg_grad.read(grad + at);
        reg_saved.read(saved + at);
      }
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        row.grad[b][k] = reg_grad.v.at[k];
        row.code[b][k] = reg_saved.halves(2 * k);
        row.special = not_finite(row.grad[b][k], row.special, T{});
      }
    }
    return row;
  }
};

// The sums of two pairs, each of which gets two terms: those of the first are terms 0 and 2.
template <bool kFinite>
__device__ __forceinline__ void add(float (&sums)[4], const unsigned (&terms)[4], const unsigned (&diagonal)[2]) {
  if constexpr (kFinite) {
    Mma<T>::add(sums, terms, diagonal);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      widen_pair(low, high, terms[j], T{});
      sums[j % 2 * 2] += low;
      sums[j % 2 * 2 + 1] += high;
    }
  }
}

// The element in row i and column c of the tile; rows[a] is the a-th row of windows above.
template <bool kFinite>
__device__ __forceinline__ Vec<unsigned, kPairs> gradient(const Row (&rows)[kRows], int i, int c,
                                                          const unsigned (&diagonal)[2]) {
  Vec<unsigned, kPairs> y;
#pragma unroll
  for (int pair = 0; pair < kPairs; pair += 2) {
    float sums[4] = {};
#pragma unroll
    for (int n = 0; n < kRows * kMost; n += 2) {
      if (i + n / kMost * kStrideH >= kWindowH) break;
      unsigned terms[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int a = (n + j / 2) / kMost, r = i + a * kStrideH;
        terms[j] =
            a < kRows && r < kWindowH ? rows[a < kRows ? a : 0].term(r, c, pair + j % 2, (n + j / 2) % kMost) : 0;
      }
      add<kFinite>(sums, terms, diagonal);
    }
    y.at[pair] = narrow_pair(sums[0], sums[1], T{});
    y.at[pair + 1] = narrow_pair(sums[2], sums[3], T{});
  }
  return y;
}

// Row i of the tile, of which the first `count` columns are written.
template <bool kFinite>
__device__ __forceinline__ void put(T* dx, const Row (&rows)[kRows], int i, int count, int column,
                                    const unsigned (&diagonal)[2]) {
#pragma unroll
  for (int c = 0; c < kStrideW; ++c) {
    const Vec<unsigned, kPairs> y = gradient<kFinite>(rows, i, c, diagonal);
    if (c < count) store(reinterpret_cast<unsigned*>(dx + static_cast<long long>(c) * column), y);
  }
}

constexpr bool kAlone = __CUDA_ARCH__ >= 1000 && kWindowH * kWindowW > 9;  // one block must do: more would cost spills

// Arguments as in small_windows_gradient.cu.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kAlone ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const unsigned char* __restrict__ saved, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const Share<Config> share(thread < a.total ? thread : a.total - 1, a.among);
  const Axis<false> axis_h(a.h, kWindowH, kStrideH), axis_w(a.w, kWindowW, kStrideW);
  const int q = share.group, column = share.column, first = share.strip * kSteps;
  const long long from = (share.plane * axis_h.outputs * axis_w.outputs + q) * column + share.channel;
  const Source source{grad + from, saved + from, axis_h.outputs, axis_w.outputs, q, column};
  dx += (share.plane * axis_h.extent * axis_w.extent + q * kStrideW) * column + share.channel;
  const int count = thread < a.total ? axis_w.extent - q * kStrideW : 0;  // columns to write
  const int lane = threadIdx.x % kWarp;
  const unsigned one = lane % 4 == lane / 8 ? static_cast<unsigned>(narrow<T>(1.0f).bits) << lane / 4 % 2 * 16 : 0,
                 diagonal[2] = {one, one};

  Row rows[kRows];
#pragma unroll
  for (int a = 1; a < kRows; ++a) rows[a] = source.read(first - a);
#pragma unroll
  for (int tile = first; tile < first + kSteps; ++tile) {
    const int top = tile * kStrideH - axis_h.before;
    if (!__any_sync(kAllLanes, top < axis_h.extent)) return;
    rows[0] = source.read(tile);
    unsigned special = 0;
#pragma unroll
    for (int a = 0; a < kRows; ++a) special |= rows[a].special;
    const bool finite = !__any_sync(kAllLanes, (special & 0x7fff7fffu) != 0);
#pragma unroll
    for (int i = 0; i < kStrideH; ++i) {
      const bool there = static_cast<unsigned>(top + i) < static_cast<unsigned>(axis_h.extent);
      T* const to = dx + static_cast<long long>(top + i) * axis_w.extent * column;
      if (finite) {
        put<true>(to, rows, i, there ? count : 0, column, diagonal);
      } else {
        put<false>(to, rows, i, there ? count : 0, column, diagonal);
      }
    }
#pragma unroll
    for (int a = kRows - 1; a > 0; --a) rows[a] = rows[a - 1];
  }
}
