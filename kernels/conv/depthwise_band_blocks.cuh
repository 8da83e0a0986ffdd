// What blocks of depthwise convolution by bands have in common (conv/depthwise_band_sm90.cu,
// conv/depthwise_cube_sm90.cu): what they are told, places in shared memory, the thread that asks for copies, an output
// by the definition. C is the Config of a kernel.
#pragma once

#include "dnnarray/ptx/tma.cuh"
#include "conv/depthwise_bands.cuh"

namespace dnnarray {

// What a launch is told: distances in elements; strips beside each other and images of a tile, its rows, pairs of rows
// under way, steps that a tile has in common with the next one.
struct BandNumbers {
  long long x_n, x_d, x_h, x_w;
  int batch, channels, flip, across, groups, rows, stages, joint, tiles;
  int depth, height, width, out_depth, out_height, out_width, before_d, before_h, before_w;
};

template <typename C, int kWeights>  // bytes of weights
struct DepthwiseBands {
  using T = typename C::Element;
  static constexpr int kSide = C::kSide, kDepth = C::kDepth, kTaps = kDepth * kSide * kSide;
  static constexpr int kPlanes = C::kPlanes, kSeen = kPlanes + kDepth - 1;  // of outputs, and of inputs that these see
  static constexpr int kWarps = 8, kThreads = (kWarps + 4) * 32, kChannels = 32, kPixel = kChannels * sizeof(T);
  static constexpr int kStrip = 8,
                       kBeyond =
                           kDepth > 1 ? 4 : 8;  // outputs that tiles are counted in, columns of inputs behind them
  static constexpr int kRows = 2, kLate = (kSide - 1) /
                                          kRows;  // rows of a step, and steps until the first of outputs are complete
  static constexpr int kMostStages = 16, kLeaving = C::kLeaving;  // pairs of rows of inputs and of outputs under way
  static_assert(kPixel == 64, "TMA's swizzle");

  using Arguments = BandNumbers;
  struct Arrays {
    const T *x, *w, *bias;
  };
  // Of a block: neighbours have the same pixels of other channels.
  struct Share {
    int first_channel, first, apart;  // the first tile, and how far the next one is

    __device__ __forceinline__ explicit Share(const Arguments& a) {
      const int chunks = (a.channels - 1) / kChannels + 1;
      const Quotient by_chunk = divide(blockIdx.x, chunks);
      first_channel = by_chunk.rest * kChannels, first = by_chunk.quotient, apart = gridDim.x / chunks;
    }
  };

  using Walk = StepsOfTiles<kRows, kLate>;
  using Tile = TileOfRows<kStrip, kPlanes>;

  // Places in shared memory: rows of inputs, of outputs, the weights, barriers.
  struct Places {
    unsigned x, y, w, full, done, free;
    int x_plane, y_plane, x_bytes, y_bytes;

    __device__ __forceinline__ Places(const Arguments& a, const void* smem) {
      x_plane = kRows * (a.across * kStrip + kBeyond) * kPixel;
      y_plane = kRows * a.across * kStrip * kPixel;
      x_bytes = kSeen * a.groups * x_plane;
      y_bytes = kPlanes * a.groups * y_plane;
      x = shared_address(smem);
      y = x + a.stages * x_bytes;
      w = y + kLeaving * y_bytes;
      full = w + kWeights;
      done = full + kMostStages * 8;
      free = done + kMostStages * 8;
    }
  };

  static __device__ __forceinline__ bool multiplies() { return threadIdx.x < kWarps * kWarp; }
  static __device__ __forceinline__ bool asks_for_copies() { return threadIdx.x == kWarps * kWarp; }

  static __device__ __forceinline__ void begin(const Arguments& a, const Places& places, const TensorMap& x,
                                               const TensorMap& y) {
    if (asks_for_copies()) {
      prefetch_tensormap(x);
      prefetch_tensormap(y);
      for (int s = 0; s < a.stages; ++s) {
        mbarrier_init(places.full + s * 8, 1);
        mbarrier_init(places.done + s * 8, kWarps);
      }
      for (int s = 0; s < kLeaving; ++s) mbarrier_init(places.free + s * 8, 1);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  // What the thread does that asks for copies. Warps are done with a step when they have put its outputs, or, with
  // kAfter, those of the step before.
  template <bool kAfter>
  static __device__ __forceinline__ void bring_and_store(const Arguments& a, const Places& places, const TensorMap& x,
                                                         const TensorMap& y, const Share& share) {
    Walk coming(a, share.first, a.tiles, share.apart, 0), leaving(a, share.first, a.tiles, share.apart, kLate);
    Tile from(a, share.first), to = from;
    const unsigned long long policy = createpolicy_evict_last();  // the neighbour takes the other half of each
    const auto bring = [&](int place) {
      const unsigned barrier = places.full + place * 8;
      mbarrier_arrive_expect_tx(barrier, places.x_bytes);
      tma_load(places.x + place * places.x_bytes, x, barrier,
               {share.first_channel, from.q - a.before_w, from.p - a.before_h + coming.row(), from.plane - a.before_d,
                from.image},
               policy);
      coming.next();
      if (coming.step == 0) from = Tile(a, coming.index);
    };
    for (int s = 0; s < a.stages && coming.more(); ++s) bring(s);
    Turn turn, of_y;
    bool stored = false, behind = kAfter;
    while (leaving.more()) {
      mbarrier_wait(places.done + turn.at * 8, turn.parity);
      const bool complete = !behind && leaving.complete();
      if (complete) {
        tma_store(places.y + of_y.at * places.y_bytes, y,
                  {share.first_channel, to.q, to.p + leaving.row(), to.plane, to.image});
        tma_store_commit_group();
      }
      if (coming.more()) bring(turn.at);
      if (complete) {
        tma_store_wait_group_read<1>();  // the one before
        if (stored) mbarrier_arrive(places.free + (of_y.at + kLeaving - 1) % kLeaving * 8);
        stored = true;
        of_y.next(kLeaving);
      }
      turn.next(a.stages);
      if (!behind) {
        leaving.next();
        if (leaving.step == 0) to = Tile(a, leaving.index);
      }
      behind = false;
    }
    tma_store_wait_group_read<0>();
  }

  static __device__ __forceinline__ bool is_strange(unsigned bits) { return (bits & 0x7fff7fffu) != 0; }

  // One output by the definition.
  static __device__ __forceinline__ float by_definition(const Arguments& a, const Arrays& arrays, int n, int o, int p,
                                                        int q, int channel) {
    float sum = C::kBias ? widen(arrays.bias[channel]) : 0.0f;
#pragma unroll 1
    for (int tap = 0; tap < kTaps; ++tap) {
      const int d = kDepth > 1 ? tap / (kSide * kSide) : 0, r = tap / kSide - d * kSide, s = tap % kSide;
      const int at_d = o + d - a.before_d, at_h = p + r - a.before_h, at_w = q + s - a.before_w;
      const auto inside = [](int at, int extent) { return at >= 0 && at < extent; };
      if (!inside(at_h, a.height) || !inside(at_w, a.width) || (kDepth > 1 && !inside(at_d, a.depth))) continue;
      const T w = arrays.w[static_cast<long long>(channel) * kTaps + (a.flip ? kTaps - 1 - tap : tap)];
      const long long plane = n * a.x_n + (kDepth > 1 ? at_d * a.x_d : 0);
      sum += widen(arrays.x[plane + at_h * a.x_h + at_w * a.x_w + channel]) * widen(w);
    }
    return C::kRelu && sum < 0.0f ? 0.0f : sum;
  }

  // What shared memory has of an output, computed again where it is NaN.
  static __device__ __forceinline__ void repair(const Arguments& a, const Arrays& arrays, unsigned smem, int n, int o,
                                                int p, int q, int channel) {
    if (n >= a.batch || o >= a.out_depth || p >= a.out_height || q >= a.out_width || channel >= a.channels) return;
    T value{ld_shared_u16(smem)};
    if (widen(value) == widen(value)) return;
    value = narrow<T>(by_definition(a, arrays, n, o, p, q, channel));
    st_shared_b16(smem, value.bits);
  }
};

}  // namespace dnnarray
