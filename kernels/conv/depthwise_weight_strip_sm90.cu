// The weight gradient of a depthwise convolution of float32 by strips: dw[c, r, s] = the sum over n, p, q of dy[n, c,
// p, q] * x[n, c, p + r - before, q + s - before]. First stage: `parts` partial sums of each tap, (K, taps, parts), in
// float; they are added up by another launch, so that the same values give the same bits.
//
// Layout:  channels innermost in memory. A block stays with 32 channels and walks down its share of the rows of x of
//          all tiles, a tile being `across` strips of kStrip columns of `groups` images; a step brings a row of x and
//          that row of dy that its first row of the window meets. TMA brings them, `stages` steps under way, zeros
//          outside of the image. A warp owns a strip, a lane a channel of it; the last kSide rows of dy stay in
//          registers, so that each row of x and of dy is read once, at places that are known when it is compiled. Rows
//          of dy change places by the loop's unrolling, not by moves.
// Needs:   sm_90; pointers aligned to 16 bytes, channels a multiple of 4; kSide x kSide, strides and dilations of 1;
//          across and groups make eight.
// Bound:   memory for small windows: x and dy once; float32 arithmetic for large ones. Sums in float32, of kSide rows
//          first and then of all: rounding grows with the terms added one after the other.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"
#include "conv/depthwise_weight_steps.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kSide = 7;
  static constexpr int kStrip = 7;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_strip_default
#endif

using namespace dnnarray;
constexpr int kSide = Config::kSide, kStrip = Config::kStrip, kWide = kStrip + kSide - 1, kTaps = kSide * kSide;
constexpr int kWarps = 8, kThreads = (kWarps + 4) * 32, kChannels = 32, kPixel = kChannels * sizeof(float);

extern __shared__ uint4 smem_memory[];

using Steps = StepsOfRows<kSide, 1, 1>;
using Sums = float[kSide][kSide];

template <int N>
__device__ __forceinline__ void load_pixels(float (&v)[N], unsigned smem) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = ld_shared_f32(smem + i * kPixel);
}

// sum[r][s] += a row of x times the rows of dy that read it by taps r, the last of which is at `now`.
__device__ __forceinline__ void add_row(Sums& sum, const float (&x)[kWide], const float (&dy)[kSide][kStrip], int now) {
#pragma unroll
  for (int t = 0; t < kStrip; ++t) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int s = 0; s < kSide; ++s) sum[r][s] += dy[(now + kSide - r) % kSide][t] * x[t + s];
    }
  }
}

// A lane's first pixel of x and of dy, from the beginning of a place.
struct Lane {
  unsigned x, dy;

  __device__ __forceinline__ explicit Lane(const TilesOfRows& a) {
    const int across = a.wide / kStrip, warp = threadIdx.x / 32, group = warp / across, first = warp % across * kStrip;
    const int channel = threadIdx.x % 32 * static_cast<int>(sizeof(float));
    x = (group * a.pitch_x + first) * kPixel + channel;
    dy = (group * a.pitch_dy + first) * kPixel + channel;
  }
};

__device__ __forceinline__ void multiply(Sums& sum, const TilesOfRows& a, const PlacesOfRows& places, Steps steps) {
  const Lane lane(a);
  Turn turn;
  while (steps.more()) {
    float dy[kSide][kStrip] = {};
    for (bool same = true; same;) {
      Sums of_rows = {};
#pragma unroll
      for (int now = 0; now < kSide && same; ++now) {
        const auto leave = [&] {
          __syncwarp();
          if (threadIdx.x % 32 == 0) mbarrier_arrive(places.done + turn.at * 8);
        };
        mbarrier_wait(places.full + turn.at * 8, turn.parity);
        if (steps.brings_dy(a)) {
          load_pixels(dy[now], places.dy + turn.at * places.dy_bytes + lane.dy);
        } else {
#pragma unroll
          for (int t = 0; t < kStrip; ++t) dy[now][t] = 0;
        }
        if (steps.brings_x(a)) {
          float x[kWide];
          load_pixels(x, places.x + turn.at * places.x_bytes + lane.x);
          leave();
          add_row(of_rows, x, dy, now);
        } else {
          leave();
        }
        same = steps.next(a);
        turn.next(a.stages);
      }
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
#pragma unroll
        for (int s = 0; s < kSide; ++s) sum[r][s] += of_rows[r][s];
      }
    }
  }
}

__device__ __forceinline__ void wait_for_warps() { bar_sync<kWarps * 32>(1); }

// Adds up what the warps have, in shared memory by (tap, warp, channel), and writes it.
__device__ __forceinline__ void finish(const Sums& sum, float* partial, int channels, long long parts, bool flip) {
  float* smem = reinterpret_cast<float*>(smem_memory);
  wait_for_warps();  // nobody needs rows any more
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) smem[tap * kWarps * 32 + threadIdx.x] = sum[tap / kSide][tap % kSide];
  wait_for_warps();
  const int channel = threadIdx.x % 32;
  if (channel >= channels) return;
  for (int tap = threadIdx.x / 32; tap < kTaps; tap += kWarps) {
    float all = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) all += smem[(tap * kWarps + warp) * 32 + channel];
    partial[(static_cast<long long>(channel) * kTaps + (flip ? kTaps - 1 - tap : tap)) * parts] = all;
  }
}

// Neighbouring blocks have the same pixels of other channels.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap dy_map, const __grid_constant__ TensorMap x_map,
                   float* __restrict__ partial, const __grid_constant__ TilesOfRows a) {
  const PlacesOfRows places(shared_address(smem_memory), a, a.groups * a.pitch_dy * kPixel,
                            a.groups * a.pitch_x * kPixel);
  const int chunks = (a.channels - 1) / kChannels + 1;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first_channel = by_chunk.rest * kChannels, part = by_chunk.quotient;
  const Steps steps(a, a.begin_of(part), a.begin_of(part + 1));
  if (threadIdx.x == kWarps * 32) {
    prefetch_tensormap(x_map);
    prefetch_tensormap(dy_map);
    places.begin(a.stages, kWarps);
  }
  __syncthreads();
  if (threadIdx.x >= kWarps * 32) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == kWarps * 32) bring_rows(a, places, x_map, dy_map, first_channel, first_channel, steps);
  } else {
    setmaxnreg_inc<232>();
    Sums sum = {};
    multiply(sum, a, places, steps);
    let_next_kernel_begin();
    finish(sum, partial + static_cast<long long>(first_channel) * kTaps * a.parts + part, a.channels - first_channel,
           a.parts, a.flip != 0);
  }
}
