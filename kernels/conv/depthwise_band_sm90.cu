// Depthwise convolution of half types by bands: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s - before] * w[c, r, s] +
// bias[c]), or the same of three axes. For one channel and one row r of the window, 8 neighbouring outputs are 16 neighbouring inputs times a band
// matrix of w[c, r, :]: a product on the tensor cores takes 16 such strips, beside each other or of several images. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block stays with kChannels channels and walks down one tile after the other: `across`
//          strips of each of `groups` images, two rows of inputs a step. The copy engine brings them, `stages` pairs under way, zeros outside of
//          the image, and stores pairs of rows of outputs. Each warp owns four channels: it takes two pixels apart into pairs of one channel each,
//          and its bands stay in registers. An input row is used once, for all kSide outputs that it meets; their sums are alive in registers and
//          move on in the product itself. A thread of one more warpgroup, which leaves its registers to the others, asks for copies.
//          Of the 16 strips of a matrix the first 8 are of one row and the others below them of the next, so that few images are under way at a
//          time. What an output has from every other row of its window is summed in one half, the rest in the other: a lane has both.
//          Of a strip's 16 pixels, lane j of a quad takes j, j + 4, j + 8, j + 12, so that together with the next strip, which takes them
//          in another order, it meets as many banks as a warp's 8 of 16 bytes can: half of them.
//          Of three axes (kDepth > 1) a tile is kPlanes planes of outputs, and a step two rows of each plane that these see: brought once, they are
//          multiplied for one plane of outputs after the other.
//          Between two images whose ends are padding the same step of zeros is the last of one and the first of the other.
// Needs:   sm_90; pointers aligned to 16 bytes, channels a multiple of 8; a window of kSide x kSide, or a cube; strides and dilations of 1; at most 8 strips.
// Bound:   memory: x and y once; two blocks share each line of x, which the cache must keep for the second. A step is one chain of a warp, of
//          which each scheduler has two: what does not wait for pixels stands between the products, and each branch behind one costs 23 cycles.
// Zeros of a band times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/box_policy.cuh"
#include "dnnarray/cluster.cuh"
#include "dnnarray/depthwise.cuh"
#include "dnnarray/depthwise_bands.cuh"
#include "dnnarray/tensor_core.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kBias = true, kRelu = false;
  static constexpr int kDepth = 1, kPlanes = 1, kSide = 7, kTogether = 2, kLeaving = 6;
};
#define DNNARRAY_ENTRY conv_depthwise_band_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kDepth = Config::kDepth, kTaps = kDepth * kSide * kSide;
constexpr int kPlanes = Config::kPlanes, kSeen = kPlanes + kDepth - 1;  // of outputs, and of inputs that these see
constexpr int kWarps = 8, kOwn = 4, kThreads = (kWarps + 4) * 32;
constexpr int kChannels = kWarps * kOwn, kPixel = kChannels * sizeof(T);
constexpr int kStrip = 8, kReach = 16;                 // outputs of a strip and the pixels that it reads
constexpr int kOther = 4 * kPixel | 32;                // from a pixel to the fourth behind it, swizzled: these bits are turned
constexpr int kRows = 2, kLate = (kSide - 1) / kRows;  // rows of a step, and steps until the first of outputs are complete
constexpr int kMostStages = 16, kLeaving = Config::kLeaving;  // pairs of rows of inputs and of outputs under way
constexpr int kWeights = kChannels * kTaps * sizeof(T);
static_assert(kStrip + kSide - 1 <= kReach && kPixel == 64, "a strip; the copy engine's swizzle");

extern __shared__ uint4 smem_memory[];

struct Arguments {
  const T *x, *w, *bias;
  long long x_n, x_d, x_h, x_w;
  int batch, channels, depth, height, width, out_depth, out_height, out_width, before_d, before_h, before_w;
  bool flip;
  int across, groups, rows, stages, joint;
};

using Walk = StepsOfTiles<kRows, kLate>;
using Tile = TileOfRows<kStrip, kPlanes>;

// Places in shared memory: rows of inputs, of outputs, the weights, barriers.
struct Places {
  unsigned x, y, w, full, done, free;
  int x_plane, y_plane, x_bytes, y_bytes;

  __device__ __forceinline__ explicit Places(const Arguments& a) {
    x_plane = kRows * (a.across + 1) * kStrip * kPixel;
    y_plane = kRows * a.across * kStrip * kPixel;
    x_bytes = kSeen * a.groups * x_plane;
    y_bytes = kPlanes * a.groups * y_plane;
    x = smem_address(smem_memory);
    y = x + a.stages * x_bytes;
    w = y + kLeaving * y_bytes;
    full = w + kWeights;
    done = full + kMostStages * 8;
    free = done + kMostStages * 8;
  }
};

// --- the thread that asks for copies ------------------------------------------------------------------------------------

__device__ __forceinline__ void bring_and_store(const Arguments& a, const Places& places, const TensorMap& x, const TensorMap& y, int first_channel,
                                                int first, int tiles, int apart) {
  Walk coming(a, first, tiles, apart, 0), leaving(a, first, tiles, apart, kLate);
  Tile from(a, first), to = from;
  const unsigned long long policy = keep_lines();  // the neighbour takes the other half of each
  const auto bring = [&](int place) {
    const unsigned barrier = places.full + place * 8;
    barrier_expect(barrier, places.x_bytes);
    copy_box(places.x + place * places.x_bytes, x, barrier,
             {first_channel, from.q - a.before_w, from.p - a.before_h + coming.row(), from.plane - a.before_d, from.image}, policy);
    coming.next();
    if (coming.step == 0) from = Tile(a, coming.index);
  };
  for (int s = 0; s < a.stages && coming.more(); ++s) bring(s);
  Turn turn, of_y;
  bool stored = false;
  for (; leaving.more(); turn.next(a.stages)) {
    barrier_wait(places.done + turn.at * 8, turn.parity);
    if (leaving.complete()) {
      store_box(places.y + of_y.at * places.y_bytes, y, {first_channel, to.q, to.p + leaving.row(), to.plane, to.image});
      commit_stores();
    }
    if (coming.more()) bring(turn.at);
    if (leaving.complete()) {
      stores_read<1>();  // the one before
      if (stored) barrier_arrive(places.free + (of_y.at + kLeaving - 1) % kLeaving * 8);
      stored = true;
      of_y.next(kLeaving);
    }
    leaving.next();
    if (leaving.step == 0) to = Tile(a, leaving.index);
  }
  stores_read<0>();
}

// --- the warps that multiply ------------------------------------------------------------------------------------------

// What the outputs have that a row is the rth of the window of, at [r + kRows]: of this row, of the second before it, ... Nothing, first.
using Sums = float[kSide + kRows][kOwn][4];  // of a plane
using Late = float[kOwn][2];  // the sums of the second row's strips that await those of the first row
using Window = Bands<T, kDepth, kSide, kOwn>;
using Weights = WarpWeights<T, kOwn, kTaps>;

struct Pair {  // places of a lane's two strips
  unsigned at[2];
};
__device__ __forceinline__ Pair moved(const Pair& first, int by) { return {first.at[0] + by, first.at[1] + by}; }

// Where a lane's two strips are, of the 16 of a matrix: the same columns of two rows.
struct Strips {
  int group, column;  // the image within a tile, the first column of outputs
  int there, odd;
  Pair x, y;  // the lane's first pixel of each row and its channels, swizzled; odd strips begin with the fourth behind it
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
      const auto first = [&](int planes, int pitch) { return ((kRows * planes * group + half) * pitch + column) * kPixel + in_pixel; };
      x.at[half] = places.x + first(kSeen, (a.across + 1) * kStrip);
      y.at[half] = places.y + first(kPlanes, a.across * kStrip);
    }
    low = odd ? 0x1054 : 0x5410, high = odd ? 0x3276 : 0x7632;
    // not computed again in each step
    asm volatile("" : "+r"(x.at[0]), "+r"(x.at[1]), "+r"(y.at[0]), "+r"(y.at[1]), "+r"(low), "+r"(high), "+r"(there), "+r"(odd));
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
        one[strip][half] = load_pair(smem.at[strip] + half * 8 * kPixel);
        other[strip][half] = load_pair((smem.at[strip] ^ kOther) + half * 8 * kPixel);
      }
    }
  }
  __device__ __forceinline__ void by_channel(unsigned (&a)[kOwn][4], const Strips& strips) const {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 x = one[strip][half], y = other[strip][half];
        a[0][2 * half + strip] = pick(x.x, y.x, strips.low);
        a[1][2 * half + strip] = pick(x.x, y.x, strips.high);
        a[2][2 * half + strip] = pick(x.y, y.y, strips.low);
        a[3][2 * half + strip] = pick(x.y, y.y, strips.high);
      }
    }
  }
};

// What the second row's strips have so far of the outputs that the first row's complete next. Copies here and nowhere else.
__device__ __forceinline__ void keep(Late& late, const Sums& sum) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) asm volatile("mov.b32 %0, %1;" : "=f"(late[c][i]) : "f"(sum[kSide][c][2 + i]));
  }
}

// What two rows of plane d of the window add to the outputs that they meet. In the first plane the sums move on: the oldest first, so that each takes
// the place of the one before.
template <int d>
__device__ __forceinline__ void add_rows(Sums& sum, const unsigned (&a)[kOwn][4], const Window& bands) {
#pragma unroll
  for (int r = kSide - 1; r >= 0; --r) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) multiply_16x8x16(sum[r + kRows][c], a[c], bands.at[d][r][c], sum[d == 0 ? r : r + kRows][c], T());
  }
}

// The same for plane kAt of those that come, to all planes of outputs that see it.
template <int kAt, int kPlane = 0>
__device__ __forceinline__ void add_plane(Sums (&sum)[kPlanes], const unsigned (&a)[kOwn][4], const Window& bands) {
  if constexpr (kAt >= kPlane && kAt - kPlane < kDepth) add_rows<kAt - kPlane>(sum[kPlane], a, bands);
  if constexpr (kPlane + 1 < kPlanes) add_plane<kAt, kPlane + 1>(sum, a, bands);
}

// The planes from kAt on; the next one's pixels are under way while the products of this one are taken.
template <int kAt>
__device__ __forceinline__ void add_planes(Sums (&sum)[kPlanes], const unsigned (&a)[kOwn][4], const Window& bands, const Pair& smem, int apart,
                                           const Strips& strips) {
  if constexpr (kAt + 1 < kSeen) {
    const Pixels next(moved(smem, apart));
    add_plane<kAt>(sum, a, bands);
    unsigned by_channel[kOwn][4];
    next.by_channel(by_channel, strips);
    add_planes<kAt + 1>(sum, by_channel, bands, moved(smem, apart), apart, strips);
  } else {
    add_plane<kAt>(sum, a, bands);
  }
}

// Stores two rows of outputs of a plane to their place in shared memory; bits of those that are not finite.
__device__ __forceinline__ unsigned put(const Pair& smem, const Sums& sum, const Late& late, const float (&bias)[kOwn], const Strips& strips) {
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
    store_pair_if(strips.there, smem.at[half], strips.odd ? w[1][0] : w[0][0], strips.odd ? w[1][1] : w[0][1]);
    store_pair_if(strips.there, smem.at[half] ^ kOther, strips.odd ? w[0][0] : w[1][0], strips.odd ? w[0][1] : w[1][1]);
  }
  return strange[0] | strange[1];
}

// The same of all planes.
__device__ __forceinline__ unsigned put(const Pair& smem, const Places& places, const Sums (&sum)[kPlanes], const Late (&late)[kPlanes],
                                        const float (&bias)[kOwn], const Strips& strips) {
  unsigned strange = 0;
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) strange |= put(moved(smem, plane * places.y_plane), sum[plane], late[plane], bias, strips);
  return strange;
}

__device__ __forceinline__ bool is_strange(unsigned bits) { return (bits & 0x7fff7fffu) != 0; }

// One output by the definition.
__device__ __forceinline__ float by_definition(const Arguments& a, int n, int o, int p, int q, int channel) {
  float sum = Config::kBias ? widen(a.bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kTaps; ++tap) {
    const int d = kDepth > 1 ? tap / (kSide * kSide) : 0, r = tap / kSide - d * kSide, s = tap % kSide;
    const int at_d = o + d - a.before_d, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
    const auto inside = [](int at, int extent) { return at >= 0 && at < extent; };
    if (!inside(at_h, a.height) || !inside(at_w, a.width) || (kDepth > 1 && !inside(at_d, a.depth))) continue;
    const T w = a.w[static_cast<long long>(channel) * kTaps + (a.flip ? kTaps - 1 - tap : tap)];
    const long long plane = n * a.x_n + (kDepth > 1 ? at_d * a.x_d : 0);
    sum += widen(a.x[plane + at_h * a.x_h + at_w * a.x_w + channel]) * widen(w);
  }
  return Config::kRelu && sum < 0.0f ? 0.0f : sum;
}

// Computes again what is NaN of the outputs that a thread has put: of a strip of each row of each plane two pixels of four channels.
__device__ __forceinline__ void repair(const Arguments& a, const Places& places, const Walk& walk, const Pair& smem, const Strips& strips,
                                       int channel) {
  const Tile tile(a, walk.index);
  const int first = tile.p + walk.row();
#pragma unroll 1
  for (int i = 0; i < 4 * kOwn * kPlanes; ++i) {
    const bool second = i / (2 * kOwn) % 2 != 0, other = i / kOwn % 2 != 0;
    const int c = i % kOwn, plane = i / (4 * kOwn), n = tile.image + strips.group, o = tile.plane + plane, row = first + second;
    const int q = tile.q + strips.column + static_cast<int>(threadIdx.x) % 4 + (other != (strips.odd != 0) ? 4 : 0);
    const bool inside = n < a.batch && o < a.out_depth && row < a.out_height && q < a.out_width && channel + c < a.channels;
    if (!strips.there || !inside) continue;
    const unsigned at = (((second ? smem.at[1] : smem.at[0]) + plane * places.y_plane) ^ (other ? kOther : 0)) + c * sizeof(T);
    T value;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value.bits) : "r"(at));
    if (widen(value) == widen(value)) continue;
    value = narrow<T>(by_definition(a, n, o, row, q, channel + c));
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(value.bits) : "memory");
  }
}

__device__ __forceinline__ void multiply(const Arguments& a, const Places& places, const Weights& weights, int first_channel, int first,
                                         int tiles, int apart) {
  const int own = threadIdx.x / kWarp * kOwn, channel = first_channel + own;
  const unsigned smem_w = places.w + own * kTaps * static_cast<int>(sizeof(T));
  weights.put(smem_w);
  const Window bands(smem_w, a.flip);
  const Strips strips(a, places);
  float bias[kOwn];
#pragma unroll
  for (int c = 0; c < kOwn; ++c) bias[c] = Config::kBias && channel + c < a.channels ? widen(a.bias[channel + c]) : 0.0f;
  Sums sum[kPlanes]{};
  Late late[kPlanes]{};
  Turn turn, of_y{0, 1};
  Walk walk(a, first, tiles, apart, kLate);
  Walk last = walk;       // the step before, whose outputs are put while the pixels of this one come and the products of other warps go on
  bool complete = false;  // whether it has any
  unsigned left = 0;      // its barrier
  const auto leave = [](unsigned barrier) {
    fence_async();
    __syncwarp();
    if (barrier && threadIdx.x % kWarp == 0) barrier_arrive(barrier);
  };
  while (walk.more()) {
    wait_for_both(places.full + turn.at * 8, turn.parity, places.free + of_y.at * 8, of_y.parity);
    const Pair from = moved(strips.x, turn.at * places.x_bytes);
    const Pixels pixels(from);
    const Pair at = moved(strips.y, of_y.at * places.y_bytes);
    const unsigned strange = complete ? put(at, places, sum, late, bias, strips) : 0;
    unsigned by_channel[kOwn][4];
    pixels.by_channel(by_channel, strips);
    if (is_strange(strange)) repair(a, places, last, at, strips, channel);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) keep(late[plane], sum[plane]);
    add_planes<0>(sum, by_channel, bands, from, places.x_plane, strips);
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
  barrier_wait(places.free + of_y.at * 8, of_y.parity);
  const Pair at = moved(strips.y, of_y.at * places.y_bytes);
  if (is_strange(put(at, places, sum, late, bias, strips))) repair(a, places, last, at, strips, channel);
  leave(left);
}

// Neighbouring blocks have the same pixels of other channels, those of a cluster the same lines of memory.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kTogether) __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, const T* __restrict__ x, const T* __restrict__ w,
    const T* __restrict__ bias, long long batch, long long channels, long long flip, long long across, long long groups, long long rows,
    long long stages, long long joint, long long tiles, long long x_n, long long x_d, long long x_h, long long x_w, long long depth, long long height,
    long long width, long long out_depth, long long out_height, long long out_width, long long before_d, long long before_h, long long before_w) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Arguments a{x, w, bias, x_n, x_d, x_h, x_w, i(batch), i(channels), i(depth), i(height), i(width), i(out_depth), i(out_height), i(out_width),
                    i(before_d), i(before_h), i(before_w), flip != 0, i(across), i(groups), i(rows), i(stages), i(joint)};
  const Places places(a);
  const int chunks = (a.channels - 1) / kChannels + 1;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first_channel = by_chunk.rest * kChannels, apart = gridDim.x / chunks;
  const bool multiplies = threadIdx.x < kWarps * kWarp;
  const Weights weights(w, multiplies ? a.channels : 0, first_channel + static_cast<int>(threadIdx.x) / kWarp * kOwn);
  if (threadIdx.x == kWarps * kWarp) {
    prefetch_map(x_map);
    prefetch_map(y_map);
    for (int s = 0; s < a.stages; ++s) {
      barrier_init(places.full + s * 8, 1);
      barrier_init(places.done + s * 8, kWarps);
    }
    for (int s = 0; s < kLeaving; ++s) barrier_init(places.free + s * 8, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (!multiplies) {
    give_registers<40>();
    if (threadIdx.x == kWarps * kWarp) bring_and_store(a, places, x_map, y_map, first_channel, by_chunk.quotient, i(tiles), apart);
  } else {
    take_registers<232>();
    multiply(a, places, weights, first_channel, by_chunk.quotient, i(tiles), apart);
  }
}
