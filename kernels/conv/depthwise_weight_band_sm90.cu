// The weight gradient of a depthwise convolution of half types by bands: dw[k, o, r, s] = the sum over n, d, p, q of
// dy[n, k, d, p, q] * x[n, k / m, d + o - before, p + r - before, q + s - before]. For one channel and one row (o, r)
// of the window, 16 neighbouring inputs times 8 neighbouring outputs, summed over 16 such strips, are a product on the
// tensor cores; dw[k, o, r, s] is the sum of the sth diagonal of what all strips give, taken once at the end. First
// stage: `parts` partial sums of each tap, (K, taps, parts), in float; they are added up by another launch, so that the
// same values give the same bits. Products are exact, sums in float.
//
// Layout:  channels innermost in memory. A block stays with kChannels channels of dy and walks down its share of the
//          rows of x of all tiles, a tile being `wide` columns of `groups` images (and kPlanes planes of dy); a step
//          brings kRows rows of x and those rows of dy that their first row of the window meets. TMA brings them,
//          `stages` steps under way, zeros outside of the image. Each warp owns four channels of dy; what it has of the
//          last rows of dy stays in registers, so that each row of x and of dy comes once. A lane has four neighbouring
//          strips: two pixels 8 columns apart are taken apart into pairs of one channel each. With two rows a step,
//          half of the lanes have the second one: fewer places of memory are read at a time, and every other row of the
//          window meets the first row of a step and the second of the step before, which these lanes read once more.
//          Rows and images begin 4 pixels (modulo 8) apart, so that a warp meets as many banks as 8 of 16 bytes of each
//          pixel can: half of them.
// Needs:   sm_90; pointers aligned to 16 bytes, channels of x and of dy multiples of 8; kDepth x kSide x kSide, strides
//          and dilations of 1; wide / 32, groups and kRows make four.
// Bound:   memory: x and dy once; the two blocks of a cluster share each line.

#include "dnnarray/core/cluster.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/depthwise_weight_steps.cuh"
#include "dnnarray/mma/warp.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kDepth = 1;
  static constexpr int kPlanes = 1;
  static constexpr int kSide = 7;
  static constexpr int kRows = 1;
  static constexpr int kMultiplier = 1;
  static constexpr int kTogether = 2;
};
#define DNNARRAY_ENTRY conv_depthwise_weight_band_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kDepth = Config::kDepth, kPlanes = Config::kPlanes, kSide = Config::kSide, kTaps = kDepth * kSide * kSide;
constexpr int kReached = kPlanes + kDepth - 1;  // planes of x
constexpr int kWarps = 8, kOwn = 4, kThreads = (kWarps + 4) * 32, kChannels = kWarps * kOwn;
constexpr int kOwnX = kOwn / Config::kMultiplier, kWords = kOwnX / 2;  // channels of x of a warp, and words of them
constexpr int kPixel = kChannels * sizeof(T), kPixelX = kWarps * kOwnX * sizeof(T);
constexpr int kStrip = 8, kStrips = 4;  // outputs of a strip, strips of a lane
constexpr int kRows = Config::kRows;    // of a step
// Rows of dy in registers, of one step each: those that begin with a step, and with two rows a step those that begin
// with the second one of the step before.
constexpr int kEven = (kSide + kRows - 1) / kRows, kOdd = kRows == 1 || kEven == 2 ? 1 : kEven;
static_assert(kSide <= kStrip && kPixel == 64 && (kPixelX == 64 || kPixelX == 32), "a strip; TMA's swizzles");

extern __shared__ uint4 smem_memory[];

using Steps = StepsOfRows<kSide, kPlanes, kRows>;
using Sums = float[kDepth][kSide][kOwn][4];
using RowsOfDy = unsigned[kPlanes][kOwn][2];  // a lane has one of two rows

template <int kWords>
__device__ __forceinline__ void load_words(unsigned (&v)[kWords], unsigned smem) {
  if constexpr (kWords == 2) {
    ld_shared_v2(v, smem);
  } else {
    v[0] = ld_shared_u32(smem);
  }
}

// Channel `c` of two pixels' words.
template <int kWords>
__device__ __forceinline__ unsigned pair_of(const unsigned (&one)[kWords], const unsigned (&other)[kWords], int c) {
  return __byte_perm(one[c / 2], other[c / 2], c % 2 ? 0x7632 : 0x5410);
}

// A lane's first pixel of its row of each plane and its channels, swizzled, from the beginning of a place; of dy also
// of the other row.
struct Lane {
  unsigned x[kReached], dy[kPlanes], other[kPlanes];
  bool second;  // whether its row is the second one of a step

  __device__ __forceinline__ explicit Lane(const TilesOfRows& a) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane % kRows, rest = lane % 4 / kRows;
    const int group = rest % a.groups, quad = rest / a.groups;
    const auto swizzled = [&](int row, int pitch, int pixel, int at) {
      const unsigned place = (row * pitch + quad * kStrips * kStrip + lane / 4) * pixel + at;
      return place ^ (place >> 3 & (pixel - 16));
    };
    second = row != 0;
#pragma unroll
    for (int i = 0; i < kReached; ++i)
      x[i] = swizzled((group * kReached + i) * kRows + row, a.pitch_x, kPixelX, warp * kOwnX * sizeof(T));
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      const int first = (group * kPlanes + i) * kRows, at = warp * kOwn * sizeof(T);
      dy[i] = swizzled(first + row, a.pitch_dy, kPixel, at);
      other[i] = swizzled(first + kRows - 1 - row, a.pitch_dy, kPixel, at);
    }
  }
};

__device__ __forceinline__ void load_dy(RowsOfDy& row, const unsigned (&at)[kPlanes], unsigned place) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    unsigned pixel[kStrips][2];
#pragma unroll
    for (int i = 0; i < kStrips; ++i) load_words(pixel[i], place + at[plane] + i * kStrip * kPixel);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      row[plane][c][0] = pair_of(pixel[0], pixel[1], c);
      row[plane][c][1] = pair_of(pixel[2], pixel[3], c);
    }
  }
}

__device__ __forceinline__ void clear(RowsOfDy& row) {
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) row[plane][c][0] = row[plane][c][1] = 0;
  }
}

// What a warp keeps of dy; the newest rows are at `now`, which the unrolled steps count.
struct Kept {
  RowsOfDy even[kEven], odd[kOdd];

  __device__ __forceinline__ Kept() {
#pragma unroll
    for (int i = 0; i < kEven; ++i) clear(even[i]);
#pragma unroll
    for (int i = 0; i < kOdd; ++i) clear(odd[i]);
  }
  // From the places of this step and of the one before, where there is one in this tile.
  __device__ __forceinline__ void load(int now, const Lane& lane, unsigned place, unsigned before, bool fresh) {
    load_dy(even[now], lane.dy, place);
    if constexpr (kRows == 2) {
      load_dy(odd[now % kOdd], lane.other, lane.second ? place : before);
      if (fresh && !lane.second) clear(odd[now % kOdd]);
    }
  }
  __device__ __forceinline__ void add_nothing(int now) {
    clear(even[now]);
    clear(odd[now % kOdd]);
  }
  // Those that row r of the window meets.
  __device__ __forceinline__ const unsigned (&met(int now, int r, int plane, int c) const)[2] {
    const int place = now + kEven - r / kRows;
    return r % kRows == 0 ? even[place % kEven][plane][c] : odd[place % kOdd][plane][c];
  }
};

using PixelsOfX = unsigned[kStrips + 1][kWords];

// What rows of a plane of x give with the rows of dy that meet them.
__device__ __forceinline__ void add_rows(Sums& sum, const PixelsOfX& pixel, const Kept& dy, int now, int reached) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    unsigned a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pair_of(pixel[i], pixel[i + 1], c / Config::kMultiplier);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      const int o = reached - plane;
      if (o < 0 || o >= kDepth) continue;
#pragma unroll
      for (int r = 0; r < kSide; ++r) Mma<T>::add(sum[o][r][c], a, dy.met(now, r, plane, c));
    }
  }
}

// Adds up diagonals by way of a warp's part of shared memory, (kOwn, kSide, kStrip), and writes them.
__device__ __forceinline__ void finish(const Sums& sum, float* smem, float* partial, int channels, long long parts,
                                       bool flip) {
  const int lane = threadIdx.x % 32, own = lane / kSide, s = lane % kSide;
#pragma unroll
  for (int o = 0; o < kDepth; ++o) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
      __syncwarp();
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = lane % 4 * 2 + i % 2, tap = lane / 4 + i / 2 * 8 - j;
          if (tap >= 0 && tap < kSide) smem[(c * kSide + tap) * kStrip + j] = sum[o][r][c][i];
        }
      }
      __syncwarp();
      if (own >= kOwn || own >= channels) continue;
      float all = 0;
#pragma unroll
      for (int j = 0; j < kStrip; ++j) all += smem[lane * kStrip + j];
      const int tap = (o * kSide + r) * kSide + s;
      partial[(own * kTaps + (flip ? kTaps - 1 - tap : tap)) * parts] = all;
    }
  }
}

__device__ __forceinline__ void multiply(Sums& sum, const TilesOfRows& a, const PlacesOfRows& places, Steps steps) {
  const Lane lane(a);
  Turn turn, before;
  bool first = true;
  while (steps.more()) {
    Kept dy;
    bool fresh = true;
    for (bool same = true; same;) {
#pragma unroll
      for (int now = 0; now < kEven && same; ++now) {
        const auto leave = [&](int place) {
          __syncwarp();
          if (threadIdx.x % 32 == 0) mbarrier_arrive(places.done + place * 8);
        };
        mbarrier_wait(places.full + turn.at * 8, turn.parity);
        if (steps.brings_dy(a)) {
          dy.load(now, lane, places.dy + turn.at * places.dy_bytes, places.dy + before.at * places.dy_bytes, fresh);
        } else {
          dy.add_nothing(now);
        }
        if (kRows == 2 && !first) leave(before.at);
        if (steps.brings_x(a)) {
#pragma unroll
          for (int reached = 0; reached < kReached; ++reached) {
            PixelsOfX pixel;
            const unsigned place = places.x + turn.at * places.x_bytes + lane.x[reached];
#pragma unroll
            for (int i = 0; i < kStrips + 1; ++i) load_words(pixel[i], place + i * kStrip * kPixelX);
            if (kRows == 1 && reached == kReached - 1) leave(turn.at);
            add_rows(sum, pixel, dy, now, reached);
          }
        } else if (kRows == 1) {
          leave(turn.at);
        }
        fresh = first = false;
        same = steps.next(a);
        before = turn;
        turn.next(a.stages);
      }
    }
  }
}

// Neighbouring blocks have the same pixels of other channels, those of a cluster the same lines of memory.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kTogether) __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap dy_map, const __grid_constant__ TensorMap x_map,
                   float* __restrict__ partial, const __grid_constant__ TilesOfRows a) {
  const PlacesOfRows places(shared_address(smem_memory), a, a.groups * kPlanes * kRows * a.pitch_dy * kPixel,
                            a.groups * kReached * kRows * a.pitch_x * kPixelX);
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
    if (threadIdx.x == kWarps * 32)
      bring_rows(a, places, x_map, dy_map, first_channel / Config::kMultiplier, first_channel, steps);
  } else {
    setmaxnreg_inc<232>();
    Sums sum = {};
    multiply(sum, a, places, steps);
    bar_sync<kWarps * 32>(1);  // nobody needs rows any more
    let_next_kernel_begin();
    const int warp = threadIdx.x / 32, channel = first_channel + warp * kOwn;
    float* smem = reinterpret_cast<float*>(smem_memory) + warp * (kOwn * kSide * kStrip);
    finish(sum, smem, partial + static_cast<long long>(channel) * kTaps * a.parts + part, a.channels - channel, a.parts,
           a.flip != 0);
  }
}
