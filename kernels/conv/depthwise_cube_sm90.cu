// Depthwise convolution of half types with three axes: y[n, c, o, p, q] = f(sum over d, r, s of x[n, c, o + d - before,
// p + r - before, q + s - before] * w[c, d, r, s] + bias[c]), d, r and s to 3. For one channel the 8 outputs of a cube
// of 2 x 2 x 2 see a cube of 4 x 4 x 4 inputs: four products on the tensor cores for 16 such cubes beside each other,
// with w as bands that have a place for each input and output. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). Blocks, tiles and steps as in depthwise_band_sm90.cu: a step
//          brings two rows of the four planes that two planes of outputs see, and they are multiplied for the two rows
//          of outputs that they complete and for the two that begin with them. A warp owns eight channels of half of
//          the tile's columns, or, of four planes of outputs, of two. Lane j of a quad takes the jth of the four
//          columns that a cube sees, in 16 bytes, so that eight lanes meet all banks; a pixel and the one below it are
//          taken apart into pairs of one channel each. Bands stay in registers.
// Needs:   sm_90; pointers aligned to 16 bytes, channels a multiple of 8; a window of 3 x 3 x 3; strides and dilations
//          of 1; at most 8 strips in a tile, or 4 of four planes.
// Bound:   memory: x and y once, and what comes through the L2 more than once: planes of x that two tiles see.
// Zeros of a band times infinity would be NaN where the definition has none: a NaN is computed again from its own
// window.

#include "dnnarray/core/cluster.cuh"
#include "conv/depthwise_band_blocks.cuh"
#include "dnnarray/mma/warp.cuh"
#include "dnnarray/ptx/integer.cuh"
#include "dnnarray/ptx/opaque.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kBias = true;
  static constexpr bool kRelu = false;
  static constexpr int kDepth = 3;
  static constexpr int kPlanes = 2;
  static constexpr int kSide = 3;
  static constexpr int kTogether = 2;
  static constexpr int kLeaving = 3;
};
#define DNNARRAY_ENTRY conv_depthwise_cube_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kOwn = 8, kShares = 2;  // channels of a warp; warps that share them
constexpr int kPlanes = Config::kPlanes;
constexpr bool kByPlanes =
    kPlanes == 2 * kShares;        // whether each has two planes of outputs, or half of the columns of both
constexpr int kPieces = kOwn / 2;  // words of a pixel's channels
constexpr int kTaps = 27, kOwnWeights = kOwn * kTaps * sizeof(T);
using Blocks = DepthwiseBands<Config, 8 * kOwnWeights>;  // each warp has its own copy
using Arguments = Blocks::Arguments;
using Places = Blocks::Places;
constexpr int kWarps = Blocks::kWarps, kPixel = Blocks::kPixel, kStrip = Blocks::kStrip, kRows = Blocks::kRows,
              kLeaving = Blocks::kLeaving;
static_assert(Config::kDepth == 3 && Config::kSide == 3 && (kPlanes == 2 || kByPlanes) &&
                  kWarps / kShares * kOwn == Blocks::kChannels,
              "cubes");

extern __shared__ uint4 smem_memory[];

using Sums = float[kOwn][4];  // of 16 cubes: a lane's two, each two rows of one column of one plane
using Weights = WarpWeights<T, kOwn, kTaps>;

// w as bands for two planes of inputs each: for the outputs that two rows complete, and for those that begin with them.
struct CubeBands {
  unsigned last[2][kOwn][2], first[2][kOwn][2];

  // A lane has the places of one column of inputs and of one output of each cube.
  __device__ __forceinline__ CubeBands(unsigned smem_w, bool flip) {
    const int lane = threadIdx.x % kWarp, column = lane % 4, o = lane / 16, s = column - lane / 8 % 2,
              second = lane / 4 % 2;
    const int way = flip ? -static_cast<int>(sizeof(T)) : static_cast<int>(sizeof(T));
    const unsigned start = smem_w + (flip ? (kTaps - 1) * static_cast<int>(sizeof(T)) : 0) + min(max(s, 0), 2) * way;
#pragma unroll
    for (int plane = 0; plane < 4; ++plane) {
      const int d = plane - o;
      const bool there = d >= 0 && d < 3 && s >= 0 && s < 3;
      // pairs of two rows: of the first output row taps (0, 1), then (2, none); of the second (none, 0), (1, 2)
      const unsigned begins = !there   ? 0x3232
                              : second ? 0x1032
                                       : 0x5410,
                     completes = !there   ? 0x3232
                                 : second ? 0x5410
                                          : 0x3254;
      const unsigned place = start + min(max(d, 0), 2) * 9 * way;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const unsigned tap = place + c * kTaps * sizeof(T);
        const unsigned top = ld_shared_u16(tap), middle = ld_shared_u16(tap + 3 * way),
                       bottom = ld_shared_u16(tap + 6 * way);
        first[plane / 2][c][plane % 2] = __byte_perm(top, middle, begins);
        last[plane / 2][c][plane % 2] = __byte_perm(middle, bottom, completes);
      }
    }
  }
};

// Where a lane's two cubes are, of the 16 of its warp.
struct Cubes {
  int group[2], column[2], there[2];  // the image within a tile, the first column of outputs
  unsigned x[2][kRows],
      y[2];   // the lane's pixel of each row of inputs and of the first one of outputs, and its channels, swizzled
  int y_row;  // bytes from row to row
  int plane;  // of outputs, within the tile

  __device__ __forceinline__ Cubes(const Arguments& a, const Places& places) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, j = lane % 4;
    const int share = warp % kShares, first = kByPlanes ? share * 2 : 0;
    plane = first + j / 2;
    const int x_row = places.x_plane / kRows;  // an odd multiple of half of what the swizzle repeats after
    y_row = a.across * kStrip * kPixel;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int cube = (kByPlanes ? 0 : share * 16) + i * 8 + lane / 4;
      const Quotient by_strip = divide(cube / 4, a.across);
      there[i] = by_strip.quotient < a.groups;
      group[i] = there[i] ? by_strip.quotient : 0;
      column[i] = by_strip.rest * kStrip + cube % 4 * 2;
      const auto place = [&](int rows, int pitch, int at) {
        return rows * pitch + at * kPixel + ((warp / kShares ^ (at / 2 & 3)) << 4);
      };
      x[i][0] = places.x + place(kRows * (Blocks::kSeen * group[i] + first), x_row, column[i] + j);
      x[i][1] = (x[i][0] + x_row) ^ 2 << 4;
      y[i] = places.y + place(kRows * (kPlanes * group[i] + plane), y_row, column[i] + j % 2);
    }
    // not computed again in each step
    opaque(x[0][0]), opaque(x[0][1]), opaque(x[1][0]), opaque(x[1][1]);
    opaque(y[0]), opaque(y[1]), opaque(there[0]), opaque(there[1]), opaque(y_row);
  }
};

// The pixels of two planes: as they come, then by channels.
struct Pixels {
  unsigned at[2][2][kRows][kPieces];  // of each cube and plane

  // `from` bytes behind the first place.
  __device__ __forceinline__ Pixels(const Cubes& cubes, int from, int x_plane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int row = 0; row < 2 * kRows; ++row)
        ld_shared_v4(at[i][row / kRows][row % kRows], cubes.x[i][row % kRows] + from + row / kRows * x_plane);
    }
  }
  __device__ __forceinline__ void by_channel(unsigned (&a)[kOwn][4]) const {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int plane = 0; plane < 2; ++plane) {
          a[c][2 * plane + i] = prmt_b32(at[i][plane][0][c / 2], at[i][plane][1][c / 2], c % 2 ? 0x7632 : 0x5410);
        }
      }
    }
  }
};

// What two rows of two planes give the outputs that they complete and those that begin with them: the first planes take
// the sums from one to the other.
template <int kPair>
__device__ __forceinline__ void multiply(Sums& done, Sums& begun, const unsigned (&a)[kOwn][4],
                                         const CubeBands& bands) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) Mma<T>::add(done[c], a[c], bands.last[kPair][c], kPair == 0 ? begun[c] : done[c]);
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    if (kPair == 0) begun[c][0] = begun[c][1] = begun[c][2] = begun[c][3] = 0.0f;
    Mma<T>::add(begun[c], a[c], bands.first[kPair][c]);
  }
}

// Stores the lane's outputs, `to` bytes behind the first place of outputs; bits of those that are not finite.
__device__ __forceinline__ unsigned put(const Sums& sum, const float (&bias)[kOwn], const Cubes& cubes, int to) {
  unsigned strange = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      unsigned words[kPieces];
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        float y[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          y[c] = sum[2 * k + c][2 * i + row];
          if (Config::kBias) y[c] += bias[2 * k + c];
          if (Config::kRelu && y[c] < 0.0f) y[c] = 0.0f;
        }
        words[k] = narrow_pair(y[0], y[1], T());
        strange = not_finite(words[k], strange, T());
      }
      st_shared_v4_if(cubes.there[i], cubes.y[i] + to + row * cubes.y_row, words);
    }
  }
  return strange;
}

// Computes again what is NaN of them.
__device__ __forceinline__ void repair(const Arguments& a, const Blocks::Arrays& arrays, const Blocks::Walk& walk,
                                       const Cubes& cubes, int to, int channel) {
  const Blocks::Tile tile(a, walk.index);
  const int j = threadIdx.x % 4;
#pragma unroll 1
  for (int k = 0; k < 2 * kRows * kOwn; ++k) {
    const int c = k % kOwn, row = k / kOwn % kRows;
    const bool second = k >= kRows * kOwn;
    if (!(second ? cubes.there[1] : cubes.there[0])) continue;
    const unsigned smem = (second ? cubes.y[1] : cubes.y[0]) + to + row * cubes.y_row + c * sizeof(T);
    Blocks::repair(a, arrays, smem, tile.image + (second ? cubes.group[1] : cubes.group[0]), tile.plane + cubes.plane,
                   tile.p + walk.row() + row, tile.q + (second ? cubes.column[1] : cubes.column[0]) + j % 2,
                   channel + c);
  }
}

__device__ __forceinline__ void multiply(const Arguments& a, const Blocks::Arrays& arrays, const Places& places,
                                         const Weights& weights, int channel, const Blocks::Share& share) {
  const unsigned smem_w = places.w + threadIdx.x / kWarp * kOwnWeights;
  weights.put(smem_w);
  const CubeBands bands(smem_w, a.flip != 0);
  const Cubes cubes(a, places);
  float bias[kOwn];
#pragma unroll
  for (int c = 0; c < kOwn; ++c)
    bias[c] = Config::kBias && channel + c < a.channels ? widen(arrays.bias[channel + c]) : 0.0f;
  Sums done{}, begun{};
  Turn turn, of_y{0, 1};
  Blocks::Walk walk(a, share.first, a.tiles, share.apart, Blocks::kLate);
  Blocks::Walk last =
      // the step before, whose outputs are put while the pixels of this one come and the products of other warps go on
      walk;
  bool complete = false;  // whether it has any
  const auto put_last = [&] {
    const int to = of_y.at * places.y_bytes;
    if (Blocks::is_strange(put(done, bias, cubes, to))) repair(a, arrays, last, cubes, to, channel);
    of_y.next(kLeaving);
  };
  // This step's pixels are in registers, the last one's outputs in shared memory.
  const auto leave = [&] {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) mbarrier_arrive(places.done + turn.at * 8);
  };
  while (walk.more()) {
    mbarrier_wait_both(places.full + turn.at * 8, turn.parity, places.free + of_y.at * 8, of_y.parity);
    const int from = turn.at * places.x_bytes;
    unsigned by_channel[kOwn][4];
    const Pixels two(cubes, from, places.x_plane);
    if (complete) put_last();
    two.by_channel(by_channel);
    const Pixels more(cubes, from + places.x_plane * 2, places.x_plane);
    multiply<0>(done, begun, by_channel, bands);
    more.by_channel(by_channel);
    leave();
    multiply<1>(done, begun, by_channel, bands);
    last = walk;
    complete = walk.complete();
    walk.next();
    turn.next(a.stages);
  }
  mbarrier_wait(places.free + of_y.at * 8, of_y.parity);
  put_last();
  leave();
}

// Neighbouring blocks have the same pixels of other channels, those of a cluster the same lines of memory.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kTogether) __launch_bounds__(Blocks::kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
                   const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                   const __grid_constant__ BandNumbers a) {
  const Places places(a, smem_memory);
  const Blocks::Share share(a);
  const int channel = share.first_channel + static_cast<int>(threadIdx.x) / kWarp / kShares * kOwn;
  const Weights weights(w, Blocks::multiplies() ? a.channels : 0, channel);
  Blocks::begin(a, places, x_map, y_map);
  if (Blocks::multiplies()) {
    setmaxnreg_inc<232>();
    multiply(a, {x, w, bias}, places, weights, channel, share);
  } else {
    setmaxnreg_dec<40>();
    if (Blocks::asks_for_copies()) Blocks::bring_and_store<true>(a, places, x_map, y_map, share);
  }
}
