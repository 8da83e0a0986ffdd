// Convolution of stride 1 as one matrix product whose left operand stays in shared memory for all taps: y[m, k] = f(sum over taps and c of
// x[m + tap, c] * w[k, tap, c] + bias[k] + residual[m, k]).
//
// Layout:  x channels-last in memory, behind a tensor map of windows of one pixel whose corners make a raster of each image: rows of `pitch`
//          places, `height` rows an image, zeros where the image ends, shared by what stands on either side of them. Then every tap is a shift, and
//          kTileM neighbouring places of the output need kTileM + reach places of the input, one box. Places behind the end of a row or an image
//          are computed for nothing. w (groups K, window, C) behind a tiled map; kTransposed: the gradient of the input from the forward's weight,
//          whose dense channels are those of the result here.
//          A block takes tiles of kTileM places x kTileN channels, one after another. One thread of the first warpgroup asks for the input of 64
//          channels (two buffers) and the weight of a tap (a ring of kStages). The others multiply, each some of the tile's rows, and write it.
// Needs:   sm_90a; C of a group a multiple of 64 where there are several groups, strides of x and w multiples of 16 bytes; padding less than the
//          window's reach.
// Bound:   the matrix units. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/conv_tma.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 256;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 8;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
};
#define DNNARRAY_ENTRY conv_implicit_halo_tma_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Out = TmaResult<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;

extern __shared__ char smem_memory[];

struct Arguments {
  Target<T, R> target;
  TmaWeight weight;
  ConvAxis h, w;
  long long tiles_m, tiles_n, groups, images;
  int pitch, height, reach;
};

// Where things lie in shared memory: two input buffers, the ring of weights, the result's panels, the barriers.
struct Shared {
  unsigned input, input_bytes, rows, weight, slots, input_full, input_empty, full, empty, slot_barriers;

  __device__ __forceinline__ Shared(unsigned first, int reach) : input(first), rows(kTileM + reach) {
    input_bytes = (rows * C::kRow + 1023) & ~1023u;
    weight = input + 2 * input_bytes;
    slots = weight + kStages * C::kBytesN;
    input_full = slots + Out::kBytes;
    input_empty = input_full + 16;
    full = input_empty + 16;
    empty = full + kStages * 8;
    slot_barriers = empty + kStages * 8;
  }
};

__device__ __forceinline__ void ask_tile(const Arguments& a, const TensorMap& x, const TensorMap& weight, const TmaPlace& tile, const Shared& smem,
                                         Ring<2>& inputs, Ring<kStages>& ring) {
  const Split by_w = split(tile.m, a.pitch), by_h = split(by_w.quotient, a.height);
  WindowPlace place = {0, by_w.rest - a.w.before, by_h.rest - a.h.before, 0, static_cast<int>(by_h.quotient)};
  for (int c = 0; c < a.weight.channels; c += C::kTileK) {
    const unsigned full = smem.input_full + inputs.stage * 8;
    barrier_wait(smem.input_empty + inputs.stage * 8, inputs.parity ^ 1);
    barrier_expect(full, smem.rows * C::kRow);
    place.c = tile.group * a.weight.channels + c;
    copy_windows<2>(smem.input + inputs.stage * smem.input_bytes, x, full, place, TapPlace{0, 0, 0});
    inputs.next();
    Place tap = {0, 0, 0};
    do {
      const unsigned arrived = smem.full + ring.stage * 8;
      barrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
      barrier_expect(arrived, C::kBytesN);
      C::ask_weight(a.weight, weight, tile, tap, c, a.target.outs, smem.weight + ring.stage * C::kBytesN, arrived);
      ring.next();
    } while (!tap.next(1, a.h.window, a.w.window));
  }
}

// What the matrix units have done with is given back one step later.
struct Release {
  unsigned weight, input;

  __device__ __forceinline__ void run() {
    if (weight != 0) C::release(weight);
    if (input != 0) C::release(input);
    weight = input = 0;
  }
};

__device__ __forceinline__ void multiply_tile(const Arguments& a, float (&sums)[C::kMmas][kTileN / 2], int part, const Shared& smem, Ring<2>& inputs,
                                              Ring<kStages>& ring, Out& out) {
  Release waiting = {0, 0};
  int step = 0;
  C::clear(sums);
  for (int c = 0; c < a.weight.channels; c += C::kTileK) {
    const unsigned input = smem.input + inputs.stage * smem.input_bytes + part * C::kMmas * 64 * C::kRow;
    barrier_wait(smem.input_full + inputs.stage * 8, inputs.parity);
    for (int r = 0; r < a.h.window; ++r)
      for (int s = 0; s < a.w.window; ++s) {
        barrier_wait(smem.full + ring.stage * 8, ring.parity);
        C::multiply(sums, input + (r * a.h.dilation * a.pitch + s * a.w.dilation) * C::kRow, smem.weight + ring.stage * C::kBytesN);
        wgmma_wait<1>();
        waiting.run();
        if (++step == 2) out.settle();
        waiting.weight = smem.empty + ring.stage * 8;
        ring.next();
      }
    waiting.input = smem.input_empty + inputs.stage * 8;
    inputs.next();
  }
  C::finish(sums);
  waiting.run();
}

// From registers: results of single precision.
__device__ __forceinline__ void write_tile(const Arguments& a, const float (&sums)[C::kMmas][kTileN / 2], const TmaPlace& tile, int part) {
#pragma unroll
  for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Split by_w = split(tile.m + C::row(part, i, half), a.pitch), by_h = split(by_w.quotient, a.height);
      const bool there = by_w.rest < a.w.out && by_h.rest < a.h.out && by_h.quotient < a.images;
      const long long at = by_h.quotient * a.target.y_n + by_h.rest * a.target.y_h + by_w.rest * a.target.y_w;
      write_row<Config, kTileN>(a.target, sums[i], half, tile.group, tile.n, at, there);
    }
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap y_map,
    const __grid_constant__ TensorMap residual_map, const T* __restrict__ bias, const T* __restrict__ residual,
    R* __restrict__ y, long long images, long long pitch, long long height, long long reach, long long channels, long long backwards,
    long long tiles_m, long long tiles_n, long long groups, long long outs, long long y_n, long long y_h, long long y_w, long long h0, long long h1,
    long long h2, long long w0, long long w1, long long w2, double p, double q) {
  const Target<T, R> target = {bias, residual, y, static_cast<int>(outs), y_n, 0, y_h, y_w, float(p), float(q)};
  const ConvAxis h(h0, h1, h2), w(w0, w1, w2);
  const Arguments a = {target,  {static_cast<int>(channels), static_cast<int>(backwards), 1, h.window, w.window}, h, w, tiles_m, tiles_n, groups,
                       images,  static_cast<int>(pitch), static_cast<int>(height), static_cast<int>(reach)};
  const Shared smem((smem_address(smem_memory) + 1023) & ~1023u, a.reach);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 + kStages; ++i) {
      barrier_init(i < 2 ? smem.input_full + i * 8 : smem.full + (i - 2) * 8, 1);
      barrier_init(i < 2 ? smem.input_empty + i * 8 : smem.empty + (i - 2) * 8, C::kConsumers);
    }
    if (Config::kResidual) Out::init(smem.slot_barriers);
    barrier_init_done();
  }
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x) / C::kGroup - 1;
  const long long tiles = tiles_m * tiles_n * groups;
  char* const slot_memory = smem_memory + (smem.slots - smem_address(smem_memory));
  const auto where = [&](long long m) {
    const Split by_w = split(m, a.pitch), by_h = split(by_w.quotient, a.height);
    return WindowPlace{0, by_w.rest, by_h.rest, 0, static_cast<int>(by_h.quotient)};
  };
  Ring<2> inputs;
  Ring<kStages> ring;
  if (part < 0) {
    give_registers<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_map(x);
      prefetch_map(weight);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_tile(a, x, weight, C::place(i, tiles_m, tiles_n), smem, inputs, ring);
      }
    } else if (Config::kResidual && Out::kStaged && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= C::kConsumers) {
      const int whose = static_cast<int>(threadIdx.x) / 32 - 1;
      Out out(slot_memory, smem.slots, smem.slot_barriers, whose);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        out.ask_residual(residual_map, C::place(i, tiles_m, tiles_n), whose, a.target.outs, where);
      }
    }
    __syncwarp();
  } else {
    take_registers<C::kMore>();
    float sums[C::kMmas][kTileN / 2];
    Out out(slot_memory, smem.slots, smem.slot_barriers, part);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      multiply_tile(a, sums, part, smem, inputs, ring, out);
      const TmaPlace tile = C::place(i, tiles_m, tiles_n);
      if constexpr (Out::kStaged) {
        out.write(a.target, y_map, sums, tile, part, where);
      } else {
        write_tile(a, sums, tile, part);
      }
    }
    stores_read<0>();
  }
}
