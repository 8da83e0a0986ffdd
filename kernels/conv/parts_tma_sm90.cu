// Convolution of float32 numbers in parts of half types (parts.cuh): y[m, k] = f(2^e * sum over taps and c of x[window
// m at tap, c] * w[k, tap, c] + bias[k] + residual[m, k]), m counting the output pixels of all images.
//
// Layout:  the parts of x channels-last, each behind a tensor map of windows (im2col); those of w (groups K, taps C)
//          behind tiled ones; y and residual by steps, channels included, in float32. kTransposed: the gradient of the
//          input from the forward's weight, whose dense channels are those of the result here. A block takes tiles of
//          kTileM pixels x kTileN channels, one after another: one thread of the first warpgroup asks for the boxes of
//          each tap and 64 channels, all parts of both operands into one stage of a ring, so that two parts bring twice
//          the bytes for three times the products. The other warpgroups multiply and write from registers. kScaled: e
//          is the sum of the exponents of x and w. kPairs: y's channels are dense, an even number of them.
// Needs:   sm_90a; strides of the parts multiples of 16 bytes; C of a group a multiple of 64 where there are several
//          groups.
// Bound:   the tensor cores. Sums in float32.

#include "dnnarray/core/activation.cuh"
#include "conv/implicit_tma.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"
#include "conv/im2col.cuh"
#include "conv/parts_sums.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
  static constexpr int kParts = 2;
  static constexpr bool kScaled = true;
  static constexpr bool kPairs = true;
};
#define DNNARRAY_ENTRY conv_parts_tma_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Sums = PartSums<Config::kParts, C::kMmas, Config::kTileN / 2>;
constexpr int kTileN = Config::kTileN, kStages = Config::kStages, kParts = Config::kParts,
              kStage = kParts * (C::kBytesM + C::kBytesN);

extern __shared__ char smem_memory[];

struct Maps {
  const TensorMap *x[kParts], *weight[kParts];
};

struct Arguments {
  Target<float, float> target;
  long long y_c;
  TmaWeight weight;
  ConvAxes axes;
  long long rows;
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

__device__ __forceinline__ void ask_tile(const Arguments& a, const Maps& maps, const TmaPlace& tile, unsigned smem,
                                         const Barriers& barriers, Ring<kStages>& ring) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const Pixel pixel = Pixel::of(a.axes, tile.m);
  WindowPlace place = {0, pixel.w * w.stride - w.before, pixel.h * h.stride - h.before, pixel.d * d.stride - d.before,
                       static_cast<int>(pixel.n)};
  Place tap = {0, 0, 0};
  do {
    const TapPlace offset = {static_cast<unsigned short>(tap.w * w.dilation),
                             static_cast<unsigned short>(tap.h * h.dilation),
                             static_cast<unsigned short>(tap.d * d.dilation)};
    for (int c = 0; c < a.weight.channels; c += C::kTileK) {
      const unsigned stage = smem + ring.stage * kStage, full = barriers.full + ring.stage * 8;
      mbarrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, kStage);
      place.c = tile.group * a.weight.channels + c;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        tma_load_im2col<Config::kAxes>(stage + p * C::kBytesM, *maps.x[p], full, place, offset);
        C::ask_weight(a.weight, *maps.weight[p], tile, tap, c, a.target.outs,
                      stage + kParts * C::kBytesM + p * C::kBytesN, full);
      }
      ring.next();
    }
  } while (!tap.next(d.window, h.window, w.window));
}

// The operands of one stage, for one warpgroup.
struct Stage {
  unsigned rows, weight;

  __device__ __forceinline__ void multiply(float (&sums)[C::kMmas][kTileN / 2], int a, int b) const {
    C::multiply(sums, rows + a * C::kBytesM, weight + b * C::kBytesN);
  }
};

__device__ __forceinline__ void multiply_tile(Sums& sums, int blocks, int part, unsigned smem, const Barriers& barriers,
                                              Ring<kStages>& ring) {
  unsigned before = 0;
  sums.clear();
  for (int block = 0; block < blocks; ++block) {
    const unsigned stage = smem + ring.stage * kStage;
    mbarrier_wait(barriers.full + ring.stage * 8, ring.parity);
    sums.add(Stage{stage + part * C::kMmas * 64 * C::kRow, stage + kParts * C::kBytesM}, [&] {
      if (block > 0) C::release(before);
    });
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  sums.finish();
  C::release(before);
}

// What is behind the sum, at `at` of the result.
__device__ __forceinline__ float finished(const Arguments& a, float sum, int channel, long long at) {
  if (Config::kBias) sum += a.target.bias[channel];
  if (Config::kResidual) sum += a.target.residual[at];
  return Config::Activation::forward(sum, a.target.p, a.target.q);
}

// The neighbouring channels from `channel` on, at `at`, of which `both` or the first are there.
__device__ __forceinline__ void write_pair(const Arguments& a, float low, float high, int channel, long long at,
                                           bool both) {
  const long long next = at + a.y_c;
  low = finished(a, low, channel, at);
  if (both) high = finished(a, high, channel + 1, next);
  if constexpr (Config::kPairs) {
    *reinterpret_cast<Vec<float, 2>*>(a.target.y + at) = {{low, high}};
  } else {
    a.target.y[at] = low;
    if (both) a.target.y[next] = high;
  }
}

__device__ __forceinline__ void write_tile(const Arguments& a, const Sums& sums, const Factors& scale,
                                           const TmaPlace& tile, int part) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long m = tile.m + C::row(part, i, half);
      if (m >= a.rows) continue;
      const long long row = a.target.row(a.axes, m);
#pragma unroll
      for (int j = 0; j < kTileN / 8; ++j) {
        const int n = tile.n + j * 8 + q * 2, channel = tile.group * a.target.outs + n;
        if (n >= a.target.outs) continue;
        const float low = sums.total[i][j * 4 + half * 2], high = sums.total[i][j * 4 + half * 2 + 1];
        write_pair(a, scale(low), scale(high), channel, row + channel * a.y_c, n + 1 < a.target.outs);
      }
    }
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements. Of one part, the maps of the
// second are not used.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap x_later,
                   const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap weight_later,
                   const Scale* __restrict__ x_scale, const Scale* __restrict__ weight_scale,
                   const float* __restrict__ bias, const float* __restrict__ residual, float* __restrict__ y,
                   long long rows, long long blocks, long long channels, long long backwards, long long tiles_m,
                   long long tiles_n, long long groups, long long outs, long long y_n, long long y_c, long long y_d,
                   long long y_h, long long y_w, long long d0, long long d1, long long d2, long long h0, long long h1,
                   long long h2, long long w0, long long w1, long long w2, double p, double q) {
  const Target<float, float> target = {bias, residual, y,       static_cast<int>(outs), y_n, y_d, y_h,
                                       y_w,  float(p), float(q)};
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const TmaWeight walk = {static_cast<int>(channels), static_cast<int>(backwards), axes.d.window, axes.h.window,
                          axes.w.window};
  const Arguments a = {target, y_c, walk, axes, rows};
  const unsigned smem = (shared_address(smem_memory) + 1023) & ~1023u, first = smem + kStages * kStage;
  const Barriers barriers = {first, first + kStages * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(barriers.full + i * 8, 1);
      mbarrier_init(barriers.empty + i * 8, C::kConsumers);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  let_next_kernel_begin();
  x_scale =
      after_previous_kernel(x_scale);  // operands are in parts, and what stood in the result's memory is done with
  const long long tiles = tiles_m * tiles_n * groups;
  const int part = static_cast<int>(threadIdx.x) / C::kGroup - 1;
  Ring<kStages> ring;
  if (part < 0) {
    setmaxnreg_dec<C::kFewer>();
    if (threadIdx.x == 0) {
      Maps maps = {{&x}, {&weight}};
      if constexpr (kParts == 2) maps.x[1] = &x_later, maps.weight[1] = &weight_later;
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x)
        ask_tile(a, maps, C::place(i, tiles_m, tiles_n), smem, barriers, ring);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::kMore>();
    const Factors scale(Config::kScaled ? x_scale->exponent + weight_scale->exponent : 0);
    Sums sums;
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      multiply_tile(sums, static_cast<int>(blocks), part, smem, barriers, ring);
      write_tile(a, sums, scale, C::place(i, tiles_m, tiles_n), part);
    }
  }
}
