// Depthwise convolution of half types by bands: y[n, c, p, q] = f(sum over r, s of x[n, c, p + r - before, q + s - before] * w[c, r, s] +
// bias[c]). For one channel and one row r of the window, 8 neighbouring outputs are 16 neighbouring inputs times a band matrix of w[c, r, :]: a
// product on the tensor cores takes 16 such strips, beside each other or of several images. Products are exact, sums in float.
//
// Layout:  channels innermost in memory, w (K, taps). A block stays with kChannels channels and walks down one tile after the other: `across`
//          strips of each of `groups` images, two rows of inputs a step. The copy engine brings them, `stages` pairs under way, zeros outside of
//          the image, and stores pairs of rows of outputs. Each warp owns four channels: it takes two pixels apart into pairs of one channel each,
//          and its bands stay in registers. An input row is used once, for all kSide outputs that it meets; their sums are alive in registers and
//          move on in the product itself. A thread of one more warpgroup, which leaves its registers to the others, asks for copies.
//          Of the 16 strips of a matrix the first 8 are of one row and the others below them of the next, so that few images are under way at a
//          time. What an output has from every other row of its window is summed in one half, the rest in the other: a lane has both.
//          Of a strip's 16 pixels, lane j of a quad takes j, j + 4, j + 8, j + 12, so that together with the next strip, which takes them
//          in another order, it meets all banks.
// Needs:   sm_90; pointers aligned to 16 bytes, channels a multiple of 8; a square window of kSide; strides and dilations of 1; at most 8 strips.
// Bound:   memory: x and y once.
// Zeros of a band times infinity would be NaN where the definition has none: a NaN is computed again from its own window.

#include "dnnarray/cluster.cuh"
#include "dnnarray/depthwise.cuh"
#include "dnnarray/reduce.cuh"
#include "dnnarray/tensor_core.cuh"
#include "dnnarray/tma.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 7, kTogether = 2;
};
#define DNNARRAY_ENTRY conv_depthwise_band_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kTaps = kSide * kSide, kWarps = 8, kOwn = 4, kThreads = (kWarps + 4) * 32;
constexpr int kChannels = kWarps * kOwn, kPixel = kChannels * sizeof(T);
constexpr int kStrip = 8, kReach = 16;                 // outputs of a strip and the pixels that it reads
constexpr int kOther = 4 * kPixel | 32;                // from a pixel to the fourth behind it, swizzled: these bits are turned
constexpr int kRows = 2, kLate = (kSide - 1) / kRows;  // rows of a step, and steps until the first of outputs are complete
constexpr int kMostStages = 16, kLeaving = 4;          // pairs of rows of inputs and of outputs under way
constexpr int kFirst = 4;                              // pairs of rows that are asked for beside the weights
constexpr int kWeights = kChannels * kTaps * sizeof(T);
static_assert(kStrip + kSide - 1 <= kReach && kPixel == 64, "a strip; the copy engine's swizzle");

extern __shared__ uint4 smem_memory[];

struct Arguments {
  const T *x, *w, *bias;
  long long x_n, x_h, x_w;
  int batch, channels, height, width, out_height, out_width, before_h, before_w;
  bool flip;
  int across, groups, rows, stages;
};

// A tile: some rows of a range of columns of some images.
struct Tile {
  int image, p, end, q;

  __device__ __forceinline__ Tile(const Arguments& a, int index) {
    const int parts = (a.out_height - 1) / a.rows + 1, tiles_w = (a.out_width - 1) / (a.across * kStrip) + 1;
    const Quotient by_part = divide(index, parts), by_w = divide(by_part.quotient, tiles_w);
    image = by_w.quotient * a.groups;
    p = by_part.rest * a.rows;
    end = min(p + a.rows, a.out_height);
    q = by_w.rest * a.across * kStrip;
  }
  __device__ __forceinline__ int steps() const { return (end - p - 1) / kRows + 1 + kLate; }
};

// Goes through the steps of a block's tiles.
struct Walk {
  int index, tiles, apart, step, steps;
  Tile tile;

  __device__ __forceinline__ Walk(const Arguments& a, int first, int tiles, int apart)
      : index(first), tiles(tiles), apart(apart), step(0), tile(a, first) {
    steps = tile.steps();
  }
  __device__ __forceinline__ bool more() const { return index < tiles; }
  __device__ __forceinline__ bool complete() const { return step >= kLate; }  // whether two rows of outputs are
  __device__ __forceinline__ int row() const { return tile.p + (step - kLate) * kRows; }  // the first of them
  __device__ __forceinline__ void next(const Arguments& a) {
    if (++step < steps) return;
    index += apart;
    step = 0;
    tile = Tile(a, index);
    steps = tile.steps();
  }
};

// Places in shared memory: rows of inputs, of outputs, the weights, barriers.
struct Places {
  unsigned x, y, w, full, done, free, ready;
  int x_bytes, y_bytes;

  __device__ __forceinline__ explicit Places(const Arguments& a) {
    x_bytes = kRows * a.groups * (a.across + 1) * kStrip * kPixel;
    y_bytes = kRows * a.groups * a.across * kStrip * kPixel;
    x = smem_address(smem_memory);
    y = x + a.stages * x_bytes;
    w = y + kLeaving * y_bytes;
    full = w + kWeights;
    done = full + kMostStages * 8;
    free = done + kMostStages * 8;
    ready = free + kLeaving * 8;
  }
};

struct Turn {  // a place in a ring
  int at = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next(int count) {
    if (++at == count) {
      at = 0;
      parity ^= 1;
    }
  }
};

// --- the thread that asks for copies ------------------------------------------------------------------------------------

__device__ __forceinline__ void bring_and_store(const Arguments& a, const Places& places, const TensorMap& x, const TensorMap& y, int first_channel,
                                                int first, int tiles, int apart) {
  prefetch_map(x);
  prefetch_map(y);
  const auto bring = [&](const Walk& walk, int place) {
    const unsigned barrier = places.full + place * 8;
    barrier_expect(barrier, places.x_bytes);
    copy_box(places.x + place * places.x_bytes, x, barrier,
             {first_channel, walk.tile.q - a.before_w, walk.tile.p - a.before_h + walk.step * kRows, 0, walk.tile.image});
  };
  Walk coming(a, first, tiles, apart), leaving = coming;
  for (int s = 0; s < a.stages && coming.more(); ++s, coming.next(a)) {
    if (s == kFirst) barrier_wait(places.ready, 0);  // the weights would wait behind all these rows
    bring(coming, s);
  }
  Turn turn, of_y;
  bool stored = false;
  for (; leaving.more(); leaving.next(a), turn.next(a.stages)) {
    barrier_wait(places.done + turn.at * 8, turn.parity);
    if (leaving.complete()) {
      store_box(places.y + of_y.at * places.y_bytes, y, {first_channel, leaving.tile.q, leaving.row(), 0, leaving.tile.image});
      commit_stores();
    }
    if (coming.more()) {
      bring(coming, turn.at);
      coming.next(a);
    }
    if (leaving.complete()) {
      stores_read<1>();  // the one before
      if (stored) barrier_arrive(places.free + (of_y.at + kLeaving - 1) % kLeaving * 8);
      stored = true;
      of_y.next(kLeaving);
    }
  }
  stores_read<0>();
}

// --- the warps that multiply ------------------------------------------------------------------------------------------

// What the outputs have that a row is the rth of the window of, at [r + kRows]: of this row, of the second before it, ... Nothing, first.
using Sums = float[kSide + kRows][kOwn][4];
using Late = float[kOwn][2];  // the sums of the second row's strips that await those of the first row

// For each row of the window, w as a band: the first row of the matrix belongs to the strip's first pixel.
struct Bands {
  unsigned at[kSide][kOwn][2];

  __device__ __forceinline__ Bands(const T* smem_w, int first_channel, bool flip) {
    const int lane = threadIdx.x % kWarp, column = lane / 8 + lane / 4 % 2 * 4;
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned pair = 0;
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int s = lane % 4 + 4 * k + 8 * half - column, tap = r * kSide + s;
            const bool there = s >= 0 && s < kSide;
            const unsigned bits = there ? smem_w[(first_channel + c) * kTaps + (flip ? kTaps - 1 - tap : tap)].bits : 0;
            pair |= bits << 16 * k;
          }
          at[r][c][half] = pair;
        }
      }
      asm volatile("" ::: "memory");  // not all addresses at once
    }
  }
};

__device__ __forceinline__ uint2 load_pair(unsigned smem) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(smem));
  return v;
}
__device__ __forceinline__ void store_pair_if(bool there, unsigned smem, unsigned x, unsigned y) {
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\n@there st.shared.v2.b32 [%0], {%1, %2};\n}" ::"r"(smem), "r"(x), "r"(y),
               "r"(static_cast<int>(there))
               : "memory");
}

// Where a lane's two strips are, of the 16 of a matrix: the same columns of two rows.
struct Strips {
  int group, column;  // the image within a tile, the first column of outputs
  int there, odd;
  unsigned in_pixel;  // the lane's first pixel and its channels, swizzled; odd strips begin with the fourth behind it

  __device__ __forceinline__ explicit Strips(const Arguments& a) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, j = lane % 4;
    const Quotient by_strip = divide(row, a.across);
    there = by_strip.quotient < a.groups;
    group = there ? by_strip.quotient : 0;
    column = by_strip.rest * kStrip;
    odd = row % 2;
    in_pixel = (j * kPixel + (((warp / 2) ^ (j / 2)) << 4) + warp % 2 * 8) ^ (odd ? kOther : 0);
  }
  // Within two rows of `pitch` pixels of each image.
  __device__ __forceinline__ unsigned at(int half, int pitch) const { return ((kRows * group + half) * pitch + column) * kPixel + in_pixel; }
};

// The pixels of a lane's strips: as they come, then by channels.
struct Row {
  uint2 one[2][2], other[2][2];

  // From the addresses of its strips' first pixels.
  __device__ __forceinline__ Row(const unsigned (&smem)[2]) {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        one[strip][half] = load_pair(smem[strip] + half * 8 * kPixel);
        other[strip][half] = load_pair((smem[strip] ^ kOther) + half * 8 * kPixel);
      }
    }
  }
  // `low` and `high` say how bytes go to their places.
  __device__ __forceinline__ void by_channel(unsigned (&a)[kOwn][4], unsigned low, unsigned high) const {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 x = one[strip][half], y = other[strip][half];
        a[0][2 * half + strip] = __byte_perm(x.x, y.x, low);
        a[1][2 * half + strip] = __byte_perm(x.x, y.x, high);
        a[2][2 * half + strip] = __byte_perm(x.y, y.y, low);
        a[3][2 * half + strip] = __byte_perm(x.y, y.y, high);
      }
    }
  }
};

// What two rows of inputs add to the outputs that they meet: the oldest first, so that each takes the place of the one before.
__device__ __forceinline__ void add_rows(Sums& sum, const unsigned (&a)[kOwn][4], const Bands& bands) {
#pragma unroll
  for (int r = kSide - 1; r >= 0; --r) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) multiply_16x8x16(sum[r + kRows][c], a[c], bands.at[r][c], sum[r][c], T());
  }
}

// Stores two rows of outputs to their place in shared memory; whether one is not finite.
__device__ __forceinline__ bool put(const unsigned (&smem)[2], const Sums& sum, const Late& late, const float (&bias)[kOwn], const Strips& strips) {
  float y[kOwn][4];
  unsigned strange[2] = {};
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[c][i] = sum[kSide + 1][c][i] + (i < 2 ? late[c][i] : sum[kSide][c][i - 2]) + bias[c];
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
    store_pair_if(strips.there, smem[half], strips.odd ? w[1][0] : w[0][0], strips.odd ? w[1][1] : w[0][1]);
    store_pair_if(strips.there, smem[half] ^ kOther, strips.odd ? w[0][0] : w[1][0], strips.odd ? w[0][1] : w[1][1]);
  }
  return ((strange[0] | strange[1]) & 0x7fff7fffu) != 0;
}

// One output by the definition.
__device__ __forceinline__ float by_definition(const Arguments& a, int n, int p, int q, int channel) {
  float sum = a.bias ? widen(a.bias[channel]) : 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < kTaps; ++tap) {
    const int r = tap / kSide, s = tap - r * kSide, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
    if (at_h < 0 || at_h >= a.height || at_w < 0 || at_w >= a.width) continue;
    const T w = a.w[static_cast<long long>(channel) * kTaps + (a.flip ? kTaps - 1 - tap : tap)];
    sum += widen(a.x[n * a.x_n + at_h * a.x_h + at_w * a.x_w + channel]) * widen(w);
  }
  return Config::kRelu && sum < 0.0f ? 0.0f : sum;
}

// Computes again what is NaN of the outputs that a thread has put: of a strip of each row two pixels of four channels.
__device__ __forceinline__ void repair(const Arguments& a, const Tile& tile, int first, const unsigned (&smem)[2], const Strips& strips,
                                       int channel) {
#pragma unroll 1
  for (int i = 0; i < 4 * kOwn; ++i) {
    const bool second = i >= 2 * kOwn, other = i / kOwn % 2 != 0;
    const int c = i % kOwn, n = tile.image + strips.group, row = first + second;
    const int q = tile.q + strips.column + static_cast<int>(threadIdx.x) % 4 + (other != (strips.odd != 0) ? 4 : 0);
    if (!strips.there || n >= a.batch || row >= a.out_height || q >= a.out_width || channel + c >= a.channels) continue;
    const unsigned at = ((second ? smem[1] : smem[0]) ^ (other ? kOther : 0)) + c * sizeof(T);
    T value;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value.bits) : "r"(at));
    if (widen(value) == widen(value)) continue;
    value = narrow<T>(by_definition(a, n, row, q, channel + c));
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(value.bits) : "memory");
  }
}

// Fetches the weights, while the first rows are coming.
__device__ __forceinline__ void fetch_weights(const Arguments& a, const Places& places, T* smem_w, int first_channel) {
  const int there = min(a.channels - first_channel, kChannels) * kTaps;
  for (int k = threadIdx.x; k < kChannels * kTaps; k += kWarps * kWarp) {
    smem_w[k] = k < there ? a.w[static_cast<long long>(first_channel) * kTaps + k] : T{};
  }
  barrier_arrive(places.ready);
  barrier_wait(places.ready, 0);
}

__device__ __forceinline__ void multiply(const Arguments& a, const Places& places, int first_channel, int first, int tiles, int apart) {
  const int own = threadIdx.x / kWarp * kOwn, channel = first_channel + own;
  T* smem_w = reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(smem_memory) + (places.w - places.x));
  fetch_weights(a, places, smem_w, first_channel);
  const Bands bands(smem_w, own, a.flip);
  Strips strips(a);
  float bias[kOwn];
#pragma unroll
  for (int c = 0; c < kOwn; ++c) bias[c] = a.bias && channel + c < a.channels ? widen(a.bias[channel + c]) : 0.0f;
  unsigned low = strips.odd ? 0x1054 : 0x5410, high = strips.odd ? 0x3276 : 0x7632;
  unsigned x[2] = {places.x + strips.at(0, (a.across + 1) * kStrip), places.x + strips.at(1, (a.across + 1) * kStrip)};
  unsigned y[2] = {places.y + strips.at(0, a.across * kStrip), places.y + strips.at(1, a.across * kStrip)};
  asm volatile("" : "+r"(x[0]), "+r"(x[1]), "+r"(y[0]), "+r"(y[1]), "+r"(low), "+r"(high), "+r"(strips.there),
               "+r"(strips.odd));  // not computed again in each row
  Sums sum{};
  Late late{};
  Turn turn, of_y{0, 1};
  int row = -1, index = 0;  // what the step before has completed: the first of two rows of outputs of a tile
  // Puts it, while the pixels of this step are coming and the products of other warps go on.
  const auto put_last = [&] {
    barrier_wait(places.free + of_y.at * 8, of_y.parity);
    const int to_y = of_y.at * places.y_bytes;
    const unsigned at[2] = {y[0] + to_y, y[1] + to_y};
    if (put(at, sum, late, bias, strips)) repair(a, Tile(a, index), row, at, strips, channel);
    of_y.next(kLeaving);
  };
  unsigned left = 0;  // its barrier
  const auto leave = [&] {
    if (row >= 0) fence_async();
    __syncwarp();
    if (left && threadIdx.x % kWarp == 0) barrier_arrive(left);
  };
  for (Walk walk(a, first, tiles, apart); walk.more(); walk.next(a), turn.next(a.stages)) {
    barrier_wait(places.full + turn.at * 8, turn.parity);
    const int to_x = turn.at * places.x_bytes;
    const Row pixels({x[0] + to_x, x[1] + to_x});
    if (row >= 0) put_last();
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      late[c][0] = sum[kSide][c][2];
      late[c][1] = sum[kSide][c][3];
    }
    unsigned by_channel[kOwn][4];
    pixels.by_channel(by_channel, low, high);
    add_rows(sum, by_channel, bands);
    leave();
    row = walk.complete() ? walk.row() : -1;
    index = walk.index;
    left = places.done + turn.at * 8;
  }
  put_last();
  leave();
}

// Neighbouring blocks have the same pixels of other channels, those of a cluster the same lines of memory.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kTogether) __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map, const T* __restrict__ x, const T* __restrict__ w,
    const T* __restrict__ bias, long long batch, long long channels, long long flip, long long across, long long groups, long long rows,
    long long stages, long long tiles, long long x_n, long long x_h, long long x_w, long long height, long long width, long long out_height,
    long long out_width, long long before_h, long long before_w) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Arguments a{x, w, bias, x_n, x_h, x_w, i(batch), i(channels), i(height), i(width), i(out_height), i(out_width), i(before_h),
                    i(before_w), flip != 0, i(across), i(groups), i(rows), i(stages)};
  const Places places(a);
  const int chunks = (a.channels - 1) / kChannels + 1;
  const Quotient by_chunk = divide(blockIdx.x, chunks);
  const int first_channel = by_chunk.rest * kChannels, apart = gridDim.x / chunks;
  if (threadIdx.x == kWarps * kWarp) {
    for (int s = 0; s < a.stages; ++s) {
      barrier_init(places.full + s * 8, 1);
      barrier_init(places.done + s * 8, kWarps);
    }
    for (int s = 0; s < kLeaving; ++s) barrier_init(places.free + s * 8, 1);
    barrier_init(places.ready, kWarps * kWarp);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= kWarps * kWarp) {
    give_registers<40>();
    if (threadIdx.x == kWarps * kWarp) bring_and_store(a, places, x_map, y_map, first_channel, by_chunk.quotient, i(tiles), apart);
  } else {
    take_registers<232>();
    multiply(a, places, first_channel, by_chunk.quotient, i(tiles), apart);
  }
}
