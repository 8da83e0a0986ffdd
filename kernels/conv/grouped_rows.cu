// Convolution of small groups, each row of inputs used for all outputs that it meets: y[n, k, p, q] = f(sum over c of
// the group, r and s of x[n, c, p + r - before, q + s - before] * w[k, c, r, s] + bias[k] + residual[n, k, p, q]).
//
// Layout:  x, y and residual with dense channels, the rest by steps; w by steps. A warp has a slab (grouped.cuh) of one
//          chunk on both sides and kM x 16 columns; its weights and the sums of the kSide rows of outputs that a row of
//          inputs meets stay in registers, where they move on from row to row. A block, `vectors` slabs times some
//          columns, walks down parts of images; rows come to shared memory some steps ahead. A product is 16 columns x
//          (two shifts x eight channels) times those x eight outputs. Rows of outputs leave by way of shared memory one
//          step later; where they will stand, the residual comes to before.
// Needs:   sm_80; half types; slabs of eight channels on both sides, pointers aligned to 16 bytes; two axes, a window
//          of kSide x kSide, stride and dilation 1; images of less than 2^31 elements.
// Bound:   memory (x, y and residual once) for windows of 3 and 5; the tensor cores for those of 7: an eighth of a
//          product is of use where groups are of one channel. Sums in float32. What is NaN, since an infinity met one
//          of the zeros, is computed again by the definition.

#include "conv/geometry.cuh"
#include "dnnarray/core/activation.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
#include "dnnarray/ptx/opaque.cuh"
#include "conv/grouped_rows.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Activation = dnnarray::Identity;
  static constexpr bool kResidual = false;
  static constexpr int kSide = 7;
  static constexpr int kM = 2;
  static constexpr int kLines = 4;
  static constexpr int kMostThreads = 384;
};
struct Arguments {
  int batch;
  int groups;
  int size;
  int vectors;
  int ranges;
  int rows;
  int columns;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::WeightStrides w_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_grouped_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kM = Config::kM, kPairs = kSide / 2, kChunk = 8;
constexpr int kLines = Config::kLines;  // rows of a step
constexpr int kAhead = 1, kSlots = kAhead + 1,
              kSteps =
                  4;  // steps on their way; steps whose rows, and of which it is known what they are, in shared memory
constexpr int kOut = Config::kResidual ? 3 : 2;  // steps whose rows of outputs have a place there

extern __shared__ uint4 smem_memory[];

// Of a row of the window: pairs of shifts, and the last shift.
struct TapRow {
  unsigned pair[kPairs][2], last;
};
using Weights = TapRow[kSide];
using Sums = float[kM][kSide][4];

struct Problem {
  const T *x, *w, *bias, *residual;
  T* y;
  int groups, size;
  long long w_group, w_k, w_c, w_h, w_w, x_n, x_h, x_w, y_n, y_h, y_w;
  int height, width, out_height, out_width, before_h, before_w;
  float p, q;
};

// This lane's two channels of the inputs at a tap, for its output.
__device__ __forceinline__ unsigned load_tap(const Problem& a, int slab, int r, int s) {
  const int lane = threadIdx.x % 32, k = slab * kChunk + lane / 4, group = k / a.size;
  unsigned word = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int c = slab * kChunk + lane % 4 * 2 + j - group * a.size;
    if (group < a.groups && c >= 0 && c < a.size) {
      word |= static_cast<unsigned>(
                  a.w[group * a.w_group + (k - group * a.size) * a.w_k + c * a.w_c + r * a.w_h + s * a.w_w].bits)
              << 16 * j;
    }
  }
  return word;
}

// By way of `smem`, a word of each lane and tap, so that few loads wait for registers at a time.
__device__ __forceinline__ void load_weights(Weights& w, unsigned* smem, const Problem& a, int slab) {
  smem += threadIdx.x % 32;
#pragma unroll 1
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int s = 0; s < kSide; ++s) smem[(r * kSide + s) * 32] = load_tap(a, slab, r, s);
  }
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int s = 0; s < kPairs; ++s) {
      w[r].pair[s][0] = smem[(r * kSide + 2 * s) * 32];
      w[r].pair[s][1] = smem[(r * kSide + 2 * s + 1) * 32];
    }
    w[r].last = smem[(r * kSide + kSide - 1) * 32];
  }
}

// A row of inputs and all outputs that it meets, the oldest first: each takes the place of the one before. `from` is
// where a lane reads.
__device__ __forceinline__ void add_row(float (&sum)[kSide][4], const Weights& w, unsigned from, int pitch,
                                        const float (&bias)[2]) {
  unsigned x[kPairs][4], last[2];
#pragma unroll
  for (int s = 0; s < kPairs; ++s) ldmatrix_x4(from + 2 * s * pitch, x[s]);
  ldmatrix_x2(from + 2 * kPairs * pitch, last);
#pragma unroll
  for (int j = kSide - 1; j >= 0; --j) {
    const float begin[4] = {j > 0 ? sum[j > 0 ? j - 1 : 0][0] : bias[0], j > 0 ? sum[j > 0 ? j - 1 : 0][1] : bias[1],
                            j > 0 ? sum[j > 0 ? j - 1 : 0][2] : bias[0], j > 0 ? sum[j > 0 ? j - 1 : 0][3] : bias[1]};
    Mma<T>::add_half(sum[j], last[0], last[1], w[j].last, begin);
#pragma unroll
    for (int s = 0; s < kPairs; ++s) Mma<T>::add(sum[j], x[s], w[j].pair[s][0], w[j].pair[s][1]);
  }
}

// One output by the definition.
__device__ __forceinline__ float by_definition(const Problem& a, int image, int p, int q, int channel) {
  const int group = channel / a.size;
  const T* bias = a.bias;
  opaque(bias);  // looked at here: else the loop around is compiled twice, with and without a bias
  float sum = bias ? widen(bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    const int r = tap / kSide, s = tap - r * kSide, h = p + r - a.before_h, w = q + s - a.before_w;
    if (h < 0 || h >= a.height || w < 0 || w >= a.width) continue;
    const T* x = a.x + image * a.x_n + h * a.x_h + w * a.x_w + static_cast<long long>(group) * a.size;
    const T* weight = a.w + group * a.w_group + (channel - group * a.size) * a.w_k + r * a.w_h + s * a.w_w;
#pragma unroll 1
    for (int c = 0; c < a.size; ++c) sum += widen(x[c]) * widen(weight[c * a.w_c]);
  }
  return sum;
}

// A step, in shared memory: the image or -1 behind the last one, the columns, the row of outputs that its first row
// completes (those before `begin` and from `end` on are not wanted), whether a part ends.
struct Step {
  int image, column, output, begin, end;
};

// Stores 16 bytes of a row's pixels, and computes again what is NaN.
__device__ __forceinline__ void store_row(const Problem& a, const PieceShare& share, const unsigned char* smem,
                                          int pitch, const Step& step, int p, int channel, int columns) {
  const int count = min(columns, a.out_width - step.column);
  T* const row = a.y + step.image * a.y_n + p * a.y_h + step.column * a.y_w + channel;
  for (int i = share.first; i < count; i += share.step) {
    const uint4 v = *reinterpret_cast<const uint4*>(smem + i * pitch + share.vector * 16);
    Vec<T, 8> values;
    memcpy(&values, &v, sizeof v);
    T* const to = row + i * a.y_w;
    store(to, values);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    bool strange = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      widen_pair(low, high, words[j], T());
      strange |= low != low || high != high;
    }
    if (!strange) continue;
#pragma unroll 1
    for (int j = 0; j < kChunk; ++j) {
      if (widen(to[j]) == widen(to[j])) continue;
      float sum = by_definition(a, step.image, p, step.column + i, channel + j);
      if constexpr (Config::kResidual) sum += widen(a.residual[to + j - a.y]);
      to[j] = narrow<T>(Config::Activation::forward(sum, a.p, a.q));
    }
  }
}

// The rows of outputs of a step, kLines of them in shared memory.
__device__ __forceinline__ void store_step(const Problem& a, const PieceShare& share, const unsigned char* smem,
                                           int pitch, const Step& step, int first, int columns) {
  const int channel = first + share.vector * kChunk;
  if (channel >= a.groups * a.size) return;
#pragma unroll 1
  for (int line = max(step.begin - step.output, 0); line < min(step.end - step.output, kLines); ++line) {
    store_row(a, share, smem + line * columns * pitch, pitch, step, step.output + line, channel, columns);
  }
}

struct Fixed {
  Parts parts;
  Rows<T> x, residual;
  int before_h, before_w, step;
};

// A step of a block: which part, its first row of inputs, and the output that this completes.
struct Cursor {
  int index, row, output;
  Part part;

  __device__ __forceinline__ Cursor(int first, const Fixed& f, int out_height)
      : index(first), part(first, f.parts, out_height) {
    begin(f);
  }
  __device__ __forceinline__ void begin(const Fixed& f) {
    const int top = part.row - f.before_h, skipped = min(max(-top, 0), kSide - 1);  // rows above the image
    row = top + skipped;
    output = part.row - (kSide - 1) + skipped;
  }
  __device__ __forceinline__ bool done(const Fixed& f) const { return index >= f.parts.count; }
  __device__ __forceinline__ Step step(const Fixed& f) const {
    return {done(f) ? -1 : part.image, part.column, output, part.row, part.end};
  }
  __device__ __forceinline__ void next(const Fixed& f, int out_height) {
    row += kLines;
    output += kLines;
    if (output < part.end) return;
    index += f.step;
    part = Part(index, f.parts, out_height);
    begin(f);
  }
};

__device__ __forceinline__ void begin_sums(Sums& sum, const float (&bias)[2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][j][i] = bias[i % 2];
    }
  }
}

// A complete row of a warp, to shared memory, and to what stands there of the residual; `smem` is this lane's place in
// the first pixel of it.
__device__ __forceinline__ void put_row(unsigned char* smem, const Sums& sum, int pitch, float p, float q) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const to = reinterpret_cast<T*>(smem + (m * 16 + half * 8) * pitch);
      float pair[2] = {sum[m][kSide - 1][2 * half], sum[m][kSide - 1][2 * half + 1]};
      if constexpr (Config::kResidual) {
        float low, high;
        widen_pair(low, high, *reinterpret_cast<const unsigned*>(to), T());
        pair[0] += low, pair[1] += high;
      }
      pair[0] = Config::Activation::forward(pair[0], p, q), pair[1] = Config::Activation::forward(pair[1], p, q);
      store(to, narrow_all<T, 2>(pair));
    }
  }
}

// `size` channels of a group on both sides. Block b has the slabs of range b % ranges and each so-many-th part, of
// `rows` x `columns` outputs.
extern "C" __global__ void __launch_bounds__(Config::kMostThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Problem problem{x,
                        weight,
                        bias,
                        residual,
                        y,
                        a.groups,
                        a.size,
                        a.w_strides.group,
                        a.w_strides.k,
                        a.w_strides.c,
                        a.w_strides.h,
                        a.w_strides.w,
                        a.x_strides.n,
                        a.x_strides.h,
                        a.x_strides.w,
                        a.y_strides.n,
                        a.y_strides.h,
                        a.y_strides.w,
                        a.axes.h.space,
                        a.axes.w.space,
                        a.axes.h.out,
                        a.axes.w.out,
                        a.axes.h.before,
                        a.axes.w.before,
                        float(a.p),
                        float(a.q)};
  const int pitch = (a.vectors | 1) * 16, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x / a.ranges, range = blockIdx.x - split * a.ranges, first = range * a.vectors * kChunk;
  const Parts parts(a.batch, problem.out_height, problem.out_width, a.rows, a.columns);
  const Rows<T> of_x{x + first,      a.x_strides.n, a.x_strides.h,        a.x_strides.w,
                     problem.height, problem.width, a.columns + kSide - 1};
  const Rows<T> of_residual{residual + first,   a.y_strides.n,     a.y_strides.h, a.y_strides.w,
                            problem.out_height, problem.out_width, a.columns};
  const Fixed& fixed =
      keep(Fixed{parts, of_x, of_residual, problem.before_h, problem.before_w, static_cast<int>(gridDim.x / a.ranges)});
  const PieceShare share(blockDim.x, a.vectors);
  const bool inside = first + share.vector * kChunk < problem.groups * problem.size;
  const int row_bytes = of_x.columns * pitch, out_bytes = a.columns * pitch;
  unsigned char* const smem = reinterpret_cast<unsigned char*>(smem_memory);
  unsigned char* const smem_y = smem + kSlots * kLines * row_bytes;

  __shared__ Step smem_steps[kSteps];
  Cursor coming(split, fixed, problem.out_height);
  Slot<kSlots> coming_slot, slot;
  Slot<kOut> coming_out, out;
  const auto bring = [&](int count) {
    if (threadIdx.x == 0) smem_steps[count % kSteps] = coming.step(fixed);
    if (!coming.done(fixed)) {
      const int left = coming.part.column - fixed.before_w;
      const unsigned to = shared_address(smem) + coming_slot.index * kLines * row_bytes;
#pragma unroll
      for (int line = 0; line < kLines; ++line) {
        fixed.x.bring(to + line * row_bytes, coming.part.image, coming.row + line, left, share, pitch, inside);
      }
      if constexpr (Config::kResidual) {
        const unsigned place = shared_address(smem_y) + coming_out.index * kLines * out_bytes;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          fixed.residual.bring(place + line * out_bytes, coming.part.image, coming.output + line, coming.part.column,
                               share, pitch, inside);
        }
      }
      coming.next(fixed, problem.out_height);
    }
    cp_async_commit_group();
    coming_slot.advance(1);
    coming_out.advance(1);
  };
  for (int s = 0; s < kAhead; ++s) bring(s);

  const int beside = warp / a.vectors, vector = warp - beside * a.vectors, slab = range * a.vectors + vector;
  Weights w;
  load_weights(w, reinterpret_cast<unsigned*>(smem_y + kOut * kLines * out_bytes) + warp * kSide * kSide * 32, problem,
               slab);
  float start[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int channel = slab * kChunk + lane % 4 * 2 + j;
    start[j] = bias && channel < problem.groups * problem.size ? widen(bias[channel]) : 0.0f;
  }
  const unsigned own = (beside * kM * 16 + lane % 16 + lane / 16) * pitch + vector * 16;
  const int place = (beside * kM * 16 + lane / 4) * pitch + vector * 16 + lane % 4 * 4;

  Sums sum;
  begin_sums(sum, start);
  for (int count = 0;; ++count) {
    cp_async_wait_group<kAhead - 1>();
    __syncthreads();
    if (count > 0)
      store_step(problem, share, smem_y + out.before(1) * kLines * out_bytes, pitch, smem_steps[(count - 1) % kSteps],
                 first, a.columns);
    const Step& step = smem_steps[count % kSteps];
    if (step.image < 0) break;
    bring(count + kAhead);
    unsigned from = shared_address(smem) + slot.index * kLines * row_bytes + own;
    unsigned char* to = smem_y + out.index * kLines * out_bytes + place;
    const int lines = min(step.end - step.output, kLines);
#pragma unroll 1
    for (int line = 0; line < lines; ++line, from += row_bytes, to += out_bytes) {
#pragma unroll
      for (int m = 0; m < kM; ++m) add_row(sum[m], w, from + m * 16 * pitch, pitch, start);
      put_row(to, sum, pitch, problem.p, problem.q);
    }
    slot.advance(1);
    out.advance(1);
    if (step.output + kLines >= step.end) begin_sums(sum, start);
  }
}
