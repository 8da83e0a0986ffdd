// The weight gradient of a convolution of small groups, each row of inputs used for all taps: dw[k, c, r, s] = the sum
// over n, p and q of dy[n, k, p, q] * x[n, c, p + r - before, q + s - before]. First stage: partial sums (part, K,
// taps, C) in float; another launch adds them up.
//
// Layout:  x and dy with dense channels, the rest by steps. A warp has a slab (grouped.cuh) of one chunk on both sides,
//          and the sums of all taps. A block, `vectors` warps, walks down parts of images: kLines rows of x and of dy
//          come to shared memory each step, one step ahead; the last kSide rows of dy stay there. A product is (two
//          rows of dy x eight channels) x 16 columns times 16 columns x eight channels of x at one shift; both operands
//          are transposed on their way to the registers. A last odd strip of 8 columns is half a product.
// Needs:   sm_80; half types; slabs of eight channels on both sides, pointers aligned to 16 bytes; two axes, a window
//          of kSide x kSide, stride and dilation 1; images of less than 2^31 elements.
// Bound:   memory (x and dy once) for windows of 3 and 5; the tensor cores for those of 7: an eighth of a product is of
//          use where groups are of one channel. Sums in float32, in a fixed order.

#include "conv/geometry.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
#include "conv/grouped_rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kSide = 7;
  static constexpr int kMostThreads = 384;
};
struct Arguments {
  int batch;
  int groups;
  int size;
  int ranges;
  int rows;
  int columns;
  dnnarray::PixelStrides y_strides;
  dnnarray::PixelStrides x_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_grouped_rows_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kPairs = (kSide + 1) / 2, kChunk = 8, kStrip = 8;
constexpr int kLines = 2, kAhead = 1;  // rows of a step, steps on their way
constexpr int kSlotsX = (kAhead + 1) * kLines,
              kSlotsY = 2 * kPairs + kLines - 1 + kAhead * kLines;  // rows in shared memory

extern __shared__ uint4 smem_memory[];

using Sums = float[kPairs][kSide][4];

struct Fixed {
  Parts parts;
  Rows<T> x, dy;
  int before_h, before_w, step;
};

// A step of a block: which part, how many rows into it. Rows of dy alone come in the first kSide - 1 steps of a part.
struct Cursor {
  int index, row;
  Part part;

  __device__ __forceinline__ Cursor(int first, const Fixed& f)
      : index(first), row(0), part(first, f.parts, f.x.height) {
    begin();
  }
  __device__ __forceinline__ void begin() { row = part.row - (kSide - 1); }
  __device__ __forceinline__ bool done(const Fixed& f) const { return index >= f.parts.count; }
  __device__ __forceinline__ void next(const Fixed& f) {
    row += kLines;
    if (row < part.end) return;
    index += f.step;
    part = Part(index, f.parts, f.x.height);
    begin();
  }
};

// Where a lane reads its rows of 8 channels from, in a strip's products: of dy, a row's half and a column; of x, a
// column and a shift.
struct Lanes {
  unsigned dy, x;
  int half;
  __device__ __forceinline__ Lanes(int pitch) {
    const int lane = threadIdx.x % 32;
    half = lane / 8 % 2;
    dy = (lane / 16 * kStrip + lane % 8) * pitch;
    x = (lane / 8 % 2 * kStrip + lane % 8 + lane / 16) * pitch;
  }
};

// Pairs of shifts. The last pair has only one: the lanes of the other would read beyond the row, where the next one is
// on its way.
__device__ __forceinline__ void load_windows(unsigned (&x)[kPairs][4], unsigned smem, int pitch) {
#pragma unroll
  for (int s = 0; s < kPairs - 1; ++s) ldmatrix_x4_trans(smem + 2 * s * pitch, x[s]);
  ldmatrix_x4_trans(smem + (kSide - 1) * pitch - threadIdx.x % 32 / 16 * pitch, x[kPairs - 1]);
}

// Two strips of 8 columns. `smem_x` is where a lane begins; `smem_dy` its row of each pair.
__device__ __forceinline__ void multiply(Sums& sum, unsigned smem_x, const unsigned (&smem_dy)[kPairs], int offset,
                                         int pitch, unsigned skipped) {
  unsigned x[kPairs][4];
  load_windows(x, smem_x + offset, pitch);
#pragma unroll
  for (int m = 0; m < kPairs; ++m) {
    if (skipped >> m & 1) continue;
    unsigned dy[4];
    ldmatrix_x4_trans(smem_dy[m] + offset, dy);
#pragma unroll
    for (int s = 0; s < kSide; ++s) Mma<T>::add(sum[m][s], dy, x[s / 2][s % 2 * 2], x[s / 2][s % 2 * 2 + 1]);
  }
}

// One strip: the lanes of the other one read the first again, which is not used.
__device__ __forceinline__ void multiply_half(Sums& sum, unsigned smem_x, const unsigned (&smem_dy)[kPairs], int offset,
                                              int pitch, unsigned skipped) {
  const int lane = threadIdx.x % 32;
  unsigned x[kPairs][4];
  load_windows(x, smem_x + offset - lane / 8 % 2 * kStrip * pitch, pitch);
#pragma unroll
  for (int m = 0; m < kPairs; ++m) {
    if (skipped >> m & 1) continue;
    unsigned dy[4];
    ldmatrix_x4_trans(smem_dy[m] + offset - lane / 16 * kStrip * pitch, dy);
#pragma unroll
    for (int s = 0; s < kSide; ++s) Mma<T>::add_half(sum[m][s], dy[0], dy[1], x[s / 2][s % 2 * 2], sum[m][s]);
  }
}

// The sums between channels of the same group, to (K, taps, C).
__device__ __forceinline__ void put(float* partial, const Sums& sum, int slab, int groups, int size) {
  const int lane = threadIdx.x % 32, k = slab * kChunk + lane / 4, group = k / size;
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int s = 0; s < kSide; ++s) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = slab * kChunk + lane % 4 * 2 + j - group * size;
        if (group < groups && c >= 0 && c < size) {
          partial[(static_cast<long long>(k) * (kSide * kSide) + r * kSide + s) * size + c] =
              sum[r / 2][s][r % 2 * 2 + j];
        }
      }
    }
  }
}

// `size` channels of a group on both sides. Block b has the slabs of range b % ranges and each so-many-th part, of
// `rows` rows of x and `columns` columns of dy.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const int vectors = blockDim.x / 32, warp = threadIdx.x / 32, pitch = (vectors | 1) * 16;
  const int split = blockIdx.x / a.ranges, range = blockIdx.x - split * a.ranges, first = range * vectors * kChunk;
  const Parts parts(a.batch, a.axes.h.space, a.axes.w.out, a.rows, a.columns);
  const Rows<T> of_x{x + first,      a.x_strides.n,  a.x_strides.h,        a.x_strides.w,
                     a.axes.h.space, a.axes.w.space, a.columns + kSide - 1};
  const Rows<T> of_y{dy + first, a.y_strides.n, a.y_strides.h, a.y_strides.w, a.axes.h.out, a.axes.w.out, a.columns};
  const Fixed& fixed =
      keep(Fixed{parts, of_x, of_y, a.axes.h.before, a.axes.w.before, static_cast<int>(gridDim.x / a.ranges)});
  const PieceShare share(blockDim.x, vectors);
  const bool inside = first + share.vector * kChunk < a.groups * a.size;
  const int row_x = of_x.columns * pitch, row_y = of_y.columns * pitch;
  const unsigned smem_x = shared_address(smem_memory), smem_y = smem_x + kSlotsX * row_x;

  Cursor coming(split, fixed), at(split, fixed);
  Slot<kSlotsX> coming_x, here_x;
  Slot<kSlotsY> coming_y, here_y;
  const auto bring = [&] {
    if (!coming.done(fixed)) {
      const Part& part = coming.part;
      const int left = part.column - fixed.before_w;
#pragma unroll
      for (int line = 0; line < kLines; ++line) {
        const int row = coming.row + line;
        if (row >= part.row)
          fixed.x.bring(smem_x + coming_x.after(line) * row_x, part.image, row, left, share, pitch, inside);
        fixed.dy.bring(smem_y + coming_y.after(line) * row_y, part.image, row + fixed.before_h, part.column, share,
                       pitch, inside);
      }
      coming.next(fixed);
    }
    cp_async_commit_group();
    coming_x.advance(kLines);
    coming_y.advance(kLines);
  };
  for (int s = 0; s < kAhead; ++s) bring();

  const Lanes lanes(pitch);
  Sums sum = {};
  for (; !at.done(fixed); at.next(fixed)) {
    cp_async_wait_group<kAhead - 1>();
    __syncthreads();
    bring();
#pragma unroll 1
    for (int line = 0; line < kLines; ++line) {
      const int row = at.row + line;
      if (row < at.part.row || row >= at.part.end) continue;
      const Slot<kSlotsY> own{here_y.after(line)};
      unsigned from[kPairs], skipped = 0;
#pragma unroll
      for (int m = 0; m < kPairs; ++m) {
        const int p = row + fixed.before_h - 2 * m;
        from[m] = smem_y + own.before(2 * m + lanes.half) * row_y + lanes.dy + warp * 16;
        skipped |= static_cast<unsigned>(p < 0 || p > fixed.dy.height) << m;  // both a.rows
      }
      const unsigned start = smem_x + here_x.after(line) * row_x + lanes.x + warp * 16;
      const int strips = fixed.dy.columns / kStrip;
      int offset = 0;
#pragma unroll 1
      for (int strip = 1; strip < strips; strip += 2, offset += 2 * kStrip * pitch)
        multiply(sum, start, from, offset, pitch, skipped);
      if (strips % 2) multiply_half(sum, start, from, offset, pitch, skipped);
    }
    here_x.advance(kLines);
    here_y.advance(kLines);
  }
  put(partial + static_cast<long long>(split) * a.groups * a.size * (kSide * kSide) * a.size, sum,
      range * vectors + warp, a.groups, a.size);
}
