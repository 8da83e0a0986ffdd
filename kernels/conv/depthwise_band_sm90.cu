// Depthwise convolution of half types by bands: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s -
// before] * w[c, r, s] + bias[c]). For one channel and one row r of the window, 8 neighbouring outputs are 16
// neighbouring inputs times a band matrix of w[c, r, :]: a product on the tensor cores takes 16 such strips, beside
// each other or of several images. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block stays with kChannels channels and walks down one tile
//          after the other: `across` strips of each of `groups` images, two rows of inputs a step. TMA brings them,
//          `stages` pairs under way, zeros outside of the image, and stores pairs of rows of outputs. Each warp owns
//          four channels: it takes two pixels apart into pairs of one channel each, and its bands stay in registers. An
//          input row is used once, for all kSide outputs that it meets; their sums are alive in registers and move on
//          in the product itself. A thread of one more warpgroup, which leaves its registers to the others, asks for
//          copies. Of the 16 strips of a matrix the first 8 are of one row and the others below them of the next, so
//          that few images are under way at a time. What an output has from every other row of its window is summed in
//          one half, the rest in the other: a lane has both. Of a strip's 16 pixels, lane j of a quad takes j, j + 4, j
//          + 8, j + 12, so that together with the next strip, which takes them in another order, it meets as many banks
//          as a warp's 8 of 16 bytes can: half of them. Between two images whose ends are padding the same step of
//          zeros is the last of one and the first of the other.
// Needs:   sm_90; pointers aligned to 16 bytes, channels a multiple of 8; a window of kSide x kSide; strides and
//          dilations of 1; at most 8 strips.
// Bound:   memory: x and y once; two blocks share each line of x, which the cache must keep for the second. A step is
//          one chain of a warp, of which each scheduler has two: what does not wait for pixels stands between the
//          products, and each branch behind one costs 23 cycles.
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
  static constexpr int kDepth = 1;
  static constexpr int kPlanes = 1;
  static constexpr int kSide = 7;
  static constexpr int kTogether = 2;
  static constexpr int kLeaving = 6;
};
#define DNNARRAY_ENTRY conv_depthwise_band_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kTaps = kSide * kSide;
constexpr int kOwn = 4;                                                                // channels of a warp
using Blocks = DepthwiseBands<Config, 8 * kOwn * kTaps* static_cast<int>(sizeof(T))>;  // of eight warps
using Arguments = Blocks::Arguments;
using Places = Blocks::Places;
constexpr int kPixel = Blocks::kPixel, kStrip = Blocks::kStrip, kRows = Blocks::kRows, kLeaving = Blocks::kLeaving;
constexpr int kReach = 16;               // the pixels that a strip reads
constexpr int kOther = 4 * kPixel | 32;  // from a pixel to the fourth behind it, swizzled: these bits are turned
static_assert(Config::kDepth == 1 && Config::kPlanes == 1 && kStrip + kSide - 1 <= kReach, "a strip");

extern __shared__ uint4 smem_memory[];

// What the outputs have that a row is the rth of the window of, at [r + kRows]: of this row, of the second before it,
// ... Nothing, first.
using Sums = float[kSide + kRows][kOwn][4];
using Late = float[kOwn][2];  // the sums of the second row's strips that await those of the first row
using Window = Bands<T, kSide, kOwn>;
using Weights = WarpWeights<T, kOwn, kTaps>;

struct Pair {  // places of a lane's two strips
  unsigned at[2];
};
__device__ __forceinline__ Pair moved(const Pair& first, int by) { return {first.at[0] + by, first.at[1] + by}; }

// Where a lane's two strips are, of the 16 of a matrix: the same columns of two rows.
struct Strips {
  int group, column;  // the image within a tile, the first column of outputs
  int there, odd;
  Pair x,
      y;  // the lane's first pixel of each row and its channels, swizzled; odd strips begin with the fourth behind it
  unsigned low, high;  // how bytes of two pixels become pairs of a channel

  __device__ __forceinline__ Strips(const Arguments& a, const Places& places) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, j = lane % 4;
    const Quotient by_strip = divide(row, a.across);
    there = by_strip.quotient < a.groups;
    group = there ? by_strip.quotient : 0;
    column = by_strip.rest * kStrip;
    odd = row % 2;
    const unsigned in_pixel = (j * kPixel + (((warp / 2) ^ (j / 2)) << 4) + warp % 2 * 8) ^ (odd ? kOther : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto first = [&](int pitch) { return ((kRows * group + half) * pitch + column) * kPixel + in_pixel; };
      x.at[half] = places.x + first((a.across + 1) * kStrip);
      y.at[half] = places.y + first(a.across * kStrip);
    }
    low = odd ? 0x1054 : 0x5410, high = odd ? 0x3276 : 0x7632;
    // not computed again in each step
    opaque(x.at[0]), opaque(x.at[1]), opaque(y.at[0]), opaque(y.at[1]);
    opaque(low), opaque(high), opaque(there), opaque(odd);
  }
};

// The pixels of a lane's strips: as they come, then by channels.
struct Pixels {
  uint2 one[2][2], other[2][2];

  // From the addresses of its strips' first pixels.
  __device__ __forceinline__ explicit Pixels(const Pair& smem) {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        one[strip][half] = ld_shared_v2(smem.at[strip] + half * 8 * kPixel);
        other[strip][half] = ld_shared_v2((smem.at[strip] ^ kOther) + half * 8 * kPixel);
      }
    }
  }
  __device__ __forceinline__ void by_channel(unsigned (&a)[kOwn][4], const Strips& strips) const {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 x = one[strip][half], y = other[strip][half];
        a[0][2 * half + strip] = prmt_b32(x.x, y.x, strips.low);
        a[1][2 * half + strip] = prmt_b32(x.x, y.x, strips.high);
        a[2][2 * half + strip] = prmt_b32(x.y, y.y, strips.low);
        a[3][2 * half + strip] = prmt_b32(x.y, y.y, strips.high);
      }
    }
  }
};

// What the second row's strips have so far of the outputs that the first row's complete next. Copies here and nowhere
// else.
__device__ __forceinline__ void keep(Late& late, const Sums& sum) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) late[c][i] = mov_b32(sum[kSide][c][2 + i]);
  }
}

// What two rows add to the outputs that they meet. The sums move on: the oldest first, so that each takes the place of
// the one before.
__device__ __forceinline__ void add_rows(Sums& sum, const unsigned (&a)[kOwn][4], const Window& bands) {
#pragma unroll
  for (int r = kSide - 1; r >= 0; --r) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) Mma<T>::add(sum[r + kRows][c], a[c], bands.at[r][c], sum[r][c]);
  }
}

// Stores two rows of outputs to their place in shared memory; bits of those that are not finite.
__device__ __forceinline__ unsigned put(const Pair& smem, const Sums& sum, const Late& late, const float (&bias)[kOwn],
                                        const Strips& strips) {
  float y[kOwn][4];
  unsigned strange[2] = {};
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[c][i] = sum[kSide + 1][c][i] + (i < 2 ? late[c][i] : sum[kSide][c][i - 2]);
      if (Config::kBias) y[c][i] += bias[c];
      if (Config::kRelu && y[c][i] < 0.0f) y[c][i] = 0.0f;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned w[2][2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        w[k][c] = narrow_pair(y[2 * c][2 * half + k], y[2 * c + 1][2 * half + k], T());
        strange[half] = not_finite(w[k][c], strange[half], T());
      }
    }
    st_shared_v2_if(strips.there, smem.at[half], strips.odd ? w[1][0] : w[0][0], strips.odd ? w[1][1] : w[0][1]);
    st_shared_v2_if(strips.there, smem.at[half] ^ kOther, strips.odd ? w[0][0] : w[1][0],
                    strips.odd ? w[0][1] : w[1][1]);
  }
  return strange[0] | strange[1];
}

// Computes again what is NaN of the outputs that a thread has put: of a strip of each row two pixels of four channels.
__device__ __forceinline__ void repair(const Arguments& a, const Blocks::Arrays& arrays, const Blocks::Walk& walk,
                                       const Pair& smem, const Strips& strips, int channel) {
  const Blocks::Tile tile(a, walk.index);
  const int first = tile.p + walk.row();
  if (!strips.there) return;
#pragma unroll 1
  for (int i = 0; i < 4 * kOwn; ++i) {
    const bool second = i / (2 * kOwn) != 0, other = i / kOwn % 2 != 0;
    const int c = i % kOwn,
              q = tile.q + strips.column + static_cast<int>(threadIdx.x) % 4 + (other != (strips.odd != 0) ? 4 : 0);
    const unsigned at = ((second ? smem.at[1] : smem.at[0]) ^ (other ? kOther : 0)) + c * sizeof(T);
    Blocks::repair(a, arrays, at, tile.image + strips.group, 0, first + second, q, channel + c);
  }
}

__device__ __forceinline__ void multiply(const Arguments& a, const Blocks::Arrays& arrays, const Places& places,
                                         const Weights& weights, int channel, const Blocks::Share& share) {
  const unsigned smem_w = places.w + threadIdx.x / kWarp * kOwn * kTaps * static_cast<int>(sizeof(T));
  weights.put(smem_w);
  const Window bands(smem_w, a.flip != 0);
  const Strips strips(a, places);
  float bias[kOwn];
#pragma unroll
  for (int c = 0; c < kOwn; ++c)
    bias[c] = Config::kBias && channel + c < a.channels ? widen(arrays.bias[channel + c]) : 0.0f;
  Sums sum{};
  Late late{};
  Turn turn, of_y{0, 1};
  Blocks::Walk walk(a, share.first, a.tiles, share.apart, Blocks::kLate);
  Blocks::Walk last =
      // the step before, whose outputs are put while the pixels of this one come and the products of other warps go on
      walk;
  bool complete = false;  // whether it has any
  unsigned left = 0;      // its barrier
  const auto leave = [](unsigned barrier) {
    fence_proxy_async();
    __syncwarp();
    if (barrier && threadIdx.x % kWarp == 0) mbarrier_arrive(barrier);
  };
  while (walk.more()) {
    mbarrier_wait_both(places.full + turn.at * 8, turn.parity, places.free + of_y.at * 8, of_y.parity);
    const Pixels pixels(moved(strips.x, turn.at * places.x_bytes));
    const Pair at = moved(strips.y, of_y.at * places.y_bytes);
    const unsigned strange = complete ? put(at, sum, late, bias, strips) : 0;
    unsigned by_channel[kOwn][4];
    pixels.by_channel(by_channel, strips);
    if (Blocks::is_strange(strange)) repair(a, arrays, last, at, strips, channel);
    keep(late, sum);
    add_rows(sum, by_channel, bands);
    // What follows has no branch, so that it stands between the products in machine code.
    const unsigned leaving = left;
    left = places.done + turn.at * 8;
    if (complete) of_y.next(kLeaving);
    last = walk;
    complete = walk.complete();
    walk.next();
    turn.next(a.stages);
    leave(leaving);
  }
  mbarrier_wait(places.free + of_y.at * 8, of_y.parity);
  const Pair at = moved(strips.y, of_y.at * places.y_bytes);
  if (Blocks::is_strange(put(at, sum, late, bias, strips))) repair(a, arrays, last, at, strips, channel);
  leave(left);
}

// Blocks of a cluster have the same lines of memory.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kTogether) __launch_bounds__(Blocks::kThreads, 1)
    DNNARRAY_ENTRY(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
                   const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                   const __grid_constant__ BandNumbers a) {
  const Places places(a, smem_memory);
  const Blocks::Share share(a);
  const int channel = share.first_channel + static_cast<int>(threadIdx.x) / kWarp * kOwn;
  const Weights weights(w, Blocks::multiplies() ? a.channels : 0, channel);
  Blocks::begin(a, places, x_map, y_map);
  if (Blocks::multiplies()) {
    setmaxnreg_inc<232>();
    multiply(a, {x, w, bias}, places, weights, channel, share);
  } else {
    setmaxnreg_dec<40>();
    if (Blocks::asks_for_copies()) Blocks::bring_and_store<false>(a, places, x_map, y_map, share);
  }
}
