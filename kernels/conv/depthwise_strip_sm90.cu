// Depthwise convolution by strips as in depthwise_strip.cu, with rows of inputs that the copy engine brings.
//
// Layout:  one thread asks for a box for each step, zeros outside of the image; no other spends instructions on what comes, which is what windows of
//          many taps in float32 are bound by. Lines of memory that several blocks take parts of are kept in the second-level cache.
// Needs:   sm_90; what depthwise_strip.cu needs; boxes of at most 256 elements along each axis.
// Bound:   as there.

#include "dnnarray/box_policy.cuh"
#include "dnnarray/depthwise_strips.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kDepth = 1;
  static constexpr int kPlanes = 1;
  static constexpr int kSide = 7;
  static constexpr int kStride = 1;
  static constexpr int kLines = 2;
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  static constexpr int kLanes = 32;
  static constexpr int kStrip = 7;
  static constexpr int kShare = 5;
  static constexpr int kStages = 4;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 3;
};
#define DNNARRAY_ENTRY conv_depthwise_strip_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Strips = DepthwiseStrips<Config>;

extern __shared__ uint4 smem_memory[];

// Rows of inputs that the copy engine brings, asked for by the block's first thread.
struct Rows : StepTurns<Config::kStages> {
  static constexpr int kLine = 128;  // bytes that the engine's places begin at multiples of
  const TensorMap& map;
  int bytes, stage;
  BoxPlace next_box;
  unsigned base;
  bool asks;

  __device__ __forceinline__ Rows(const TensorMap& map, const Strips::Block& block, const Strips::Arguments& a, int row)
      : map(map),
        bytes(Config::kLines * block.seen() * static_cast<int>(a.pitch.n) * Strips::kPixel),
        stage((bytes + kLine - 1) / kLine * kLine),
        next_box{block.first, block.left(a), row, block.top_plane(a), block.image},
        base(smem_address(smem_memory)),
        asks(threadIdx.x == 0) {
    ring.full = base + Config::kStages * stage;
    ring.done = ring.full + Config::kStages * 8;
  }
  __device__ __forceinline__ void begin(int steps) {
    if (asks) {
      prefetch_map(map);
      for (int s = 0; s < Config::kStages; ++s) {
        barrier_init(ring.full + s * 8, 1);
        barrier_init(ring.done + s * 8, Config::kThreads / 32);
      }
      barrier_init_done();
      for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
    }
  }
  // The engine writes where threads wrote and read; behind this all of them see the barriers too.
  __device__ __forceinline__ void weights_read() const {
    fence_async();
    __syncthreads();
  }
  __device__ __forceinline__ void ahead(int step, int steps) {
    if (asks && step + ring.kAhead < steps) {
      wait_for_place(step);
      bring(coming);
    }
    turn();
  }

 private:
  __device__ __forceinline__ void bring(int place) {
    barrier_expect(ring.full + place * 8, bytes);
    copy_box(base + place * stage, map, ring.full + place * 8, next_box, keep_lines());
    next_box.at[2] += Config::kLines;
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks) DNNARRAY_ENTRY(const __grid_constant__ TensorMap x_map,
    const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual, T* __restrict__ gmem_y, long long batch,
    long long channels, long long flip, long long chunks, long long by_chunks, long long parts, long long by_parts, long long tiles, long long by_tiles,
    long long depth_groups, long long by_depth_groups, long long across, long long by_across, long long pitch, long long by_pitch, long long rows,
    long long x_n, long long x_h, long long x_w, long long y_n, long long y_h, long long y_w, long long height, long long width, long long out_height,
    long long out_width, long long before_h, long long before_w, long long x_d, long long y_d, long long depths, long long depth_steps) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Strips::Arguments a{gmem_w, gmem_bias, gmem_residual, gmem_y, i(batch), i(channels), flip != 0, Divisor(chunks, by_chunks),
                            Divisor(parts, by_parts), Divisor(tiles, by_tiles), Divisor(depth_groups, by_depth_groups), Divisor(across, by_across),
                            Divisor(pitch, by_pitch), i(rows), x_n, x_h, x_w, y_n, y_h, y_w, i(height), i(width), i(out_height), i(out_width),
                            i(before_h), i(before_w), x_d, y_d, depths, depth_steps};
  const Strips::Block block(a);
  const Strips::Range range = block.range(a);
  Rows of_x(x_map, block, a, range.row);
  Strips::walk(a, block, range, of_x, smem_memory);
}
