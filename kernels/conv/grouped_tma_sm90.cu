// Convolution of groups of 4, 8, 16 or 32 channels, their windows gathered by TMA: y[n, k, p] = f(sum over taps and c
// of the group of x[n, c, p * stride + tap * dilation - before] * w[k, c, tap] + bias[k] + residual[n, k, p]).
//
// Layout:  x channels-last in memory behind a tensor map of windows, as in implicit_tma_sm90.cu; y and residual by
//          steps, their channels dense; w by steps, or each row of it dense. A tile is 64 places x 64 channels
//          (float32: 32), which are whole groups on both sides. A block takes tiles, those of the same channels one
//          after another. Its first warpgroup has a thread for each of the others, which asks for the channels of the
//          places of a tile at each tap, through a ring of kStages: they have tiles of their own, so that one
//          multiplies while another writes. Together they put the weights of the channels into shared memory, in panels
//          of a tap whose rows are kSize channels of the sum, and each multiplies the groups' columns of its places by
//          their own rows: a product is kSize channels wide on both sides. kTransposed: the gradient of the input from
//          the forward's weight. kAcross > 1: the window's columns take one box together. Then the map makes a raster
//          of each row of the result, `pitch` places with zeros where the image ends, and a column of the window is a
//          shift of places. kReal < kSize: groups of fewer channels than a product takes in pairs, with zeros between
//          them. What is NaN then is computed again by the definition. float32: both operands are rounded to TF32, x by
//          TMA.
// Needs:   sm_90a; half types or float32; strides of x multiples of 16 bytes; corners and offsets of the window within
//          what a map can hold. kAcross columns of a window have a stride of 1, and kReach places from the first to the
//          last.
// Bound:   shared memory, of which the tensor cores read 128 bytes of a place for each tap, and the wait for each
//          stage: 0.96 us for a tile of 3 x 3 on an H200 (2026-11-22). Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/keep.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "conv/epilogue.cuh"
#include "dnnarray/ptx/tma.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
  static constexpr int kReal = 16;
  static constexpr int kAcross = 3;
  static constexpr int kStages = 5;
  static constexpr int kConsumers = 3;
};
#define DNNARRAY_ENTRY conv_grouped_tma_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kGroup = 128, kConsumers = Config::kConsumers, kThreads = (1 + kConsumers) * kGroup, kTile = 64,
              kRow = 128;
constexpr int kWide = kRow / sizeof(T), kChunk = 16 / sizeof(T),
              kLeast = 2 * kChunk;  // channels of a tile, of 16 bytes, of a product at the least
constexpr int kReal = Config::kReal, kSize = kReal < kLeast ? kLeast : kReal, kGroups = kWide / kSize,
              kSums = kSize / 2;  // kSums: a thread's of a group
constexpr int kRowW = kSize * sizeof(T), kBytesW = kWide * kRowW,
              kPart = kSize * kRowW;  // bytes of a tap's weights: of a row, of all, of a group
constexpr int kAcross = Config::kAcross,
              kReach = kAcross > 1 ? 8 : 0;  // taps of a box, places behind a tile's last one
constexpr int kStages = Config::kStages, kStage = (kTile + kReach) * kRow;
constexpr int kFewer = kConsumers == 3 ? 56 : 32,
              kMore = kConsumers == 3 ? 152 : 112;  // registers of asking and of multiplying threads
constexpr int kBatch = 6;                           // loads of weights of a thread on their way
// The gradient of the input: half types stand as the forward's do, and the products take them the other way round;
// float32 is turned round here.
constexpr bool kOtherWay = Config::kTransposed && sizeof(T) == 2, kTurns = Config::kTransposed && sizeof(T) == 4;

extern __shared__ char smem_memory[];

// A weight by its steps. `form` 1: each row dense, (C, window); 2: (window, C), both behind pointers aligned to 16
// bytes; 0: neither. `turned`: a dense row has its taps the other way round.
struct Weight {
  const T* w;
  long long k, c, d, h, s;
  int form, turned;
};

struct Arguments {
  Target<T, R> target;
  Weight weight;
  const T* x;
  Strides x_step;
  ConvAxes axes;
  long long rows;
  int pitch, taps;

  __device__ __forceinline__ WindowPlace where(long long m) const {
    const Split by_w = split(m, pitch), by_h = split(by_w.quotient, axes.h.out),
                by_d = split(by_h.quotient, axes.d.out);
    return {0, by_w.rest, by_h.rest, by_d.rest, static_cast<int>(by_d.quotient)};
  }
  // Where the channels of place m begin in the result, or -1.
  __device__ __forceinline__ long long at(long long m) const {
    const WindowPlace p = where(m);
    return m < rows && p.w < axes.w.out ? p.n * target.y_n + p.d * target.y_d + p.h * target.y_h + p.w * target.y_w
                                        : -1;
  }
};

// A block's tiles: some of the places, of the same channels one after another. Blocks of the same places have different
// channels, so that a block packs weights as seldom as can be.
struct Share {
  int first, end, channels;

  __device__ __forceinline__ Share(int tiles_m, int tiles_n)
      : first(cut(tiles_m, blockIdx.x)), end(cut(tiles_m, blockIdx.x + 1)), channels(tiles_n * kWide) {}

  static __device__ __forceinline__ int cut(int tiles, unsigned block) {
    return static_cast<int>(static_cast<long long>(tiles) * block / gridDim.x);
  }
  // Calls `act(m, channel)` for the tiles of one warpgroup, `begin(channel)` before those of other channels.
  template <typename Begin, typename Act>
  __device__ __forceinline__ void each(int part, Begin begin, Act act) const {
    for (int channel = blockIdx.y * kWide; channel < channels; channel += gridDim.y * kWide) {
      begin(channel);
      for (int i = first + part; i < end; i += kConsumers) act(static_cast<long long>(i) * kTile, channel);
    }
  }
};

// The weights, and the ring of one of the warpgroups that multiply, with the barriers of its first stage.
struct Shared {
  unsigned weight, ring, full, empty;

  __device__ __forceinline__ Shared(unsigned first, int taps, int part) : weight(first) {
    const unsigned rings = first + taps * kBytesW;
    ring = rings + part * kStages * kStage;
    full = rings + kConsumers * kStages * kStage + part * kStages * 16;
    empty = full + kStages * 8;
  }
};

// --- the threads that ask
// ---------------------------------------------------------------------------------------------

__device__ __forceinline__ void ask_tile(const Arguments& a, const TensorMap& x, long long m, int channel,
                                         const Shared& smem, Ring<kStages>& ring) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  WindowPlace place = a.where(m);
  place.c = channel;
  place.w = place.w * w.stride - w.before, place.h = place.h * h.stride - h.before,
  place.d = place.d * d.stride - d.before;
  Place tap = {0, 0, 0};
  do {
    const unsigned full = smem.full + ring.stage * 8;
    const TapPlace offset = {static_cast<unsigned short>(tap.w * w.dilation),
                             static_cast<unsigned short>(tap.h * h.dilation),
                             static_cast<unsigned short>(tap.d * d.dilation)};
    mbarrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
    mbarrier_arrive_expect_tx(full, kStage);
    tma_load_im2col<Config::kAxes>(smem.ring + ring.stage * kStage, x, full, place, offset);
    ring.next();
  } while (!tap.next(d.window, h.window, kAcross > 1 ? 1 : w.window));
}

// --- the weights
// ------------------------------------------------------------------------------------------------------

// Where a weight of output `row` of the tile's stands. Chunks of 16 bytes are exchanged as the tensor cores expect
// them.
__device__ __forceinline__ unsigned place_of(unsigned smem, int tap, int row, int c) {
  const int n = kTurns ? row / kReal * kReal + c : row, k = kTurns ? row % kSize : row % kSize / kReal * kReal + c;
  constexpr int kChunks = kRowW / 16;
  const int chunk = k / kChunk ^ n * kChunks / 8 % kChunks;
  return smem + tap * kBytesW + n * kRowW + chunk * 16 + k % kChunk * static_cast<int>(sizeof(T));
}

__device__ __forceinline__ void put_at(unsigned smem, float value) { st_shared_f32(smem, value); }
template <typename Half>
__device__ __forceinline__ void put_at(unsigned smem, Half value) {
  st_shared_b16(smem, value.bits);
}

// As the products take it.
__device__ __forceinline__ float rounded(float value) { return __uint_as_float(cvt_tf32_f32(value)); }
template <typename Half>
__device__ __forceinline__ Half rounded(Half value) {
  return value;
}

// A chunk whose channels stay together.
__device__ __forceinline__ void put_chunk(unsigned smem, const Vec<T, kChunk>& values) {
  unsigned words[4];
  memcpy(words, &values, sizeof words);
  st_shared_v4(smem, words);
}

// Neighbours of a dense row, from element e on.
__device__ __forceinline__ void put_all(unsigned smem, const Arguments& a, int row, int e,
                                        const Vec<T, kChunk>& values) {
  const int taps = a.taps, by = a.weight.form == 1 ? taps : kReal;
  int outer = e / by, inner = e - outer * by;
  if (!kTurns && a.weight.form == 2) {
    put_chunk(place_of(smem, a.weight.turned ? taps - 1 - outer : outer, row, inner), values);
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    const int tap = a.weight.form == 1 ? inner : outer, c = a.weight.form == 1 ? outer : inner;
    put_at(place_of(smem, a.weight.turned ? taps - 1 - tap : tap, row, c), values.at[j]);
    if (++inner == by) inner = 0, ++outer;
  }
}

// Rows (C, window): a thread has all taps of a chunk of channels, whose places the compiler knows.
template <int kTaps>
__device__ __forceinline__ void pack_windows(const Arguments& a, const T* rows, int own, unsigned smem, int thread) {
  for (int i = thread; i < own * (kReal / kChunk); i += kConsumers * kGroup) {
    const int part = i / own, row = i - part * own, c = part * kChunk;
    T values[kChunk * kTaps];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const Vec<T, kChunk> found = load<T, kChunk>(rows + row * a.weight.k + c * kTaps + j * kChunk);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) values[j * kChunk + e] = rounded(found.at[e]);
    }
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      Vec<T, kChunk> chunk;
#pragma unroll
      for (int e = 0; e < kChunk; ++e) chunk.at[e] = values[e * kTaps + tap];
      put_chunk(place_of(smem, a.weight.turned ? kTaps - 1 - tap : tap, row, c), chunk);
    }
  }
}

__device__ __forceinline__ void pack_dense(const Arguments& a, int channel, unsigned smem, int thread) {
  const ConvAxes& axes = a.axes;
  const Weight& w = a.weight;
  const T* rows = w.w + channel * w.k +
                  (w.turned ? (axes.d.window - 1) * w.d + (axes.h.window - 1) * w.h + (axes.w.window - 1) * w.s : 0);
  // Lanes have neighbouring rows, which stand in other banks; the taps of a row do not.
  const int own = min(kWide, a.target.outs - channel), count = own * (kReal * a.taps / kChunk);
  if (!kTurns && w.form == 1 && a.taps == 9) {  // 3 x 3
    pack_windows<9>(a, rows, own, smem, thread);
    return;
  }
  for (int first = thread; first < count; first += kBatch * kConsumers * kGroup) {
    Vec<T, kChunk> values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kConsumers * kGroup, chunk = at / own;
      if (at < count) values[i] = load<T, kChunk>(rows + (at - chunk * own) * w.k + chunk * kChunk);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kConsumers * kGroup, chunk = at / own;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) values[i].at[j] = rounded(values[i].at[j]);
      if (at < count) put_all(smem, a, at - chunk * own, chunk * kChunk, values[i]);
    }
  }
}

__device__ __forceinline__ void pack_any(const Arguments& a, int channel, unsigned smem, int thread) {
  const int count = min(kWide, a.target.outs - channel) * kReal;
  Place tap = {0, 0, 0};
  int index = 0;
  do {
    const T* from = a.weight.w + tap.d * a.weight.d + tap.h * a.weight.h + tap.w * a.weight.s;
#pragma unroll 4
    for (int i = thread; i < count; i += kConsumers * kGroup) {
      put_at(place_of(smem, index, i / kReal, i % kReal),
             rounded(from[(channel + i / kReal) * a.weight.k + i % kReal * a.weight.c]));
    }
    ++index;
  } while (!tap.next(a.axes.d.window, a.axes.h.window, a.axes.w.window));
}

// By all warpgroups that multiply, when none of them needs the last ones any more.
__device__ __forceinline__ void pack_weights(const Arguments& a, int channel, unsigned smem) {
  const int thread = static_cast<int>(threadIdx.x) - kGroup;
  bar_sync<kConsumers * kGroup>(1);
  if constexpr (kReal < kSize) {
    for (int i = thread * 4; i < a.taps * kBytesW; i += kConsumers * kGroup * 4) st_shared_b32(smem + i, 0u);
    bar_sync<kConsumers * kGroup>(1);
  }
  if (a.weight.form) {
    pack_dense(a, channel, smem, thread);
  } else {
    pack_any(a, channel, smem, thread);
  }
  fence_proxy_async();
  bar_sync<kConsumers * kGroup>(1);
}

// --- the warpgroups that multiply
// -------------------------------------------------------------------------------------

// Adds the products of a stage's taps, neighbours `apart` places from each other.
__device__ __forceinline__ void multiply(float (&sums)[kGroups][kSums], unsigned rows, unsigned weight, int apart) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kAcross; ++i) {
    const unsigned long long x = panel(rows + i * apart * kRow);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const unsigned long long w = narrow_panel<kRowW>(weight + i * kBytesW + group * kPart);
      constexpr int kSteps = kRowW / 32;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Wgmma<T, false, kOtherWay, kSize>::run(sums[group], x + 2 * (group * kSteps + k),
                                               w + (kOtherWay ? kRowW : 2) * k);
      }
    }
  }
  wgmma_commit_group();
}

__device__ __forceinline__ void release(unsigned empty) {
  if (threadIdx.x % kGroup == 0) mbarrier_arrive(empty);
}

// The next tile of this warpgroup, its sums in the order of the columns.
__device__ __forceinline__ void multiply_tile(const Arguments& a, float (&sums)[kWide / 2], int stages,
                                              const Shared& smem, Ring<kStages>& ring) {
  unsigned before = 0, weight = smem.weight;
  float found[kGroups][kSums] = {};
  for (int i = 0; i < stages; ++i, weight += kAcross * kBytesW) {
    mbarrier_wait(smem.full + ring.stage * 8, ring.parity);
    multiply(found, smem.ring + ring.stage * kStage, weight, a.axes.w.dilation);
    wgmma_wait_group<1>();
    if (i > 0) release(before);
    before = smem.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait_group<0>();
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    hold(found[group]);
#pragma unroll
    for (int j = 0; j < kSums; ++j) sums[group * kSums + j] = found[group][j];
  }
  release(before);
}

// One output by the definition.
__device__ __noinline__ float definition(const Arguments& a, const WindowPlace& p, int channel) {
  const int group = channel / kReal * kReal, own = channel - group;
  const Weight& w = a.weight;
  const T* image = a.x + p.n * a.x_step.n + group;
  const T* weight = w.w + group * w.k + own * (Config::kTransposed ? w.c : w.k);
  const long long step = Config::kTransposed ? w.k : w.c;
  float sum = 0;
  Place tap = {0, 0, 0};
  do {
    const long long at = a.axes.input({p.d, p.h, p.w}, tap, a.x_step);
    if (at < 0) continue;
    const T* here = weight + tap.d * w.d + tap.h * w.h + tap.w * w.s;
    for (int c = 0; c < kReal; ++c) sum += widen(image[at + c]) * widen(here[c * step]);
  } while (!tap.next(a.axes.d.window, a.axes.h.window, a.axes.w.window));
  return sum;
}

// Computes again what is NaN of a thread's sums: `m` is the first of its two places, `n` the tile's first channel.
__device__ __forceinline__ void repair(const Arguments& a, const float (&sums)[kWide / 2], long long m, int n) {
  unsigned strange = 0;
#pragma unroll
  for (int i = 0; i < kWide / 2; ++i) strange |= static_cast<unsigned>(sums[i] != sums[i]) << i;
  if (__any_sync(0xffffffffu, strange != 0)) __syncwarp();  // other lanes have stored them
  while (strange) {
    const int i = __ffs(strange) - 1, channel = n + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const long long place = m + i / 2 % 2 * 8, at = a.at(place);
    strange &= strange - 1;
    if (at < 0 || channel >= a.target.outs) continue;
    float sum = definition(a, a.where(place), channel);
    if (Config::kBias) sum += widen(a.target.bias[channel]);
    if (Config::kResidual) sum += widen(a.target.residual[at + channel]);
    a.target.y[at + channel] = narrow<R>(Config::Activation::forward(sum, a.target.p, a.target.q));
  }
}

// `rows` places of `pitch` in a row, `outs` of all groups; steps of y and the weight in elements.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap map, const T* __restrict__ x, const T* __restrict__ weight,
                   const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y, long long rows,
                   long long pitch, long long tiles_m, long long tiles_n, long long outs, long long form,
                   long long turned, long long w_k, long long w_c, long long w_d, long long w_h, long long w_w,
                   long long x_n, long long x_d, long long x_h, long long x_w, long long y_n, long long y_d,
                   long long y_h, long long y_w, long long d0, long long d1, long long d2, long long h0, long long h1,
                   long long h2, long long w0, long long w1, long long w2, double p, double q) {
  let_next_kernel_begin();
  y = after_previous_kernel(y);                                              // the operands are there, too
  const auto i32 = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const int taps = axes.d.window * axes.h.window * axes.w.window, stages = taps / kAcross;
  const Arguments& a = keep(Arguments{{bias, residual, y, i32(outs), y_n, y_d, y_h, y_w, float(p), float(q)},
                                      {weight, w_k, w_c, w_d, w_h, w_w, i32(form), i32(turned)},
                                      x,
                                      {x_n, 0, x_d, x_h, x_w},
                                      axes,
                                      rows,
                                      i32(pitch),
                                      taps});
  const bool asks = threadIdx.x < kGroup;
  const int part = asks ? threadIdx.x / 32 : threadIdx.x / kGroup - 1;
  const bool one = asks && part < kConsumers && threadIdx.x % 32 == 0;
  const Shared smem((shared_address(smem_memory) + 1023) & ~1023u, taps, part);
  const Share share(i32(tiles_m), i32(tiles_n));
  if (one) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(smem.full + i * 8, 1);
      mbarrier_init(smem.empty + i * 8, 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  Ring<kStages> ring;
  if (asks) {
    setmaxnreg_dec<kFewer>();
    if (one) {
      prefetch_tensormap(map);
      share.each(part, [](int) {}, [&](long long m, int channel) { ask_tile(a, map, m, channel, smem, ring); });
    }
    __syncwarp();
    return;
  }
  setmaxnreg_inc<kMore>();
  const int row = threadIdx.x % kGroup / 32 * 16 + threadIdx.x % 32 / 4;
  const auto pack = [&](int channel) { pack_weights(a, channel, smem.weight); };
  share.each(part, pack, [&](long long tile, int channel) {
    const long long m = tile + row, at[2] = {a.at(m), a.at(m + 8)};
    float sums[kWide / 2];
    multiply_tile(a, sums, stages, smem, ring);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      write_row<Config, kWide>(a.target, sums, half, 0, channel, at[half] < 0 ? 0 : at[half], at[half] >= 0);
    if constexpr (kReal < kSize) repair(a, sums, m, channel);
  });
}
