// Depthwise convolution by strips as in depthwise_strip.cu, with rows of inputs that TMA brings.
//
// Layout:  one thread asks for a box for each step, zeros outside of the image; no other spends instructions on what
//          comes, which is what windows of many taps in float32 are bound by. Lines of memory that several blocks take
//          parts of are kept in the L2.
// Needs:   sm_90; what depthwise_strip.cu needs; boxes of at most 256 elements along each axis.
// Bound:   as there.

#include "dnnarray/ptx/tma.cuh"
#include "conv/depthwise_strips.cuh"

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
struct Arguments {
  dnnarray::TensorMap x;
  int batch;
  int channels;
  int flip;
  int rows;
  int chunks;
  int parts;
  int tiles;
  int depth_groups;
  int across;
  int pitch;
  long long by_chunks;
  long long by_parts;
  long long by_tiles;
  long long by_depth_groups;
  long long by_across;
  long long by_pitch;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_depthwise_strip_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Strips = DepthwiseStrips<Config>;

extern __shared__ uint4 smem_memory[];

// Rows of inputs that TMA brings, asked for by the block's first thread.
struct Rows : StepTurns<Config::kStages> {
  static constexpr int kLine = 128;  // bytes that the engine's places begin at multiples of
  const TensorMap& map;
  int bytes, stage;
  BoxPlace next_box;
  unsigned base;
  bool asks;

  __device__ __forceinline__ Rows(const TensorMap& map, const Strips::Block& block, const Strips::Problem& a, int row)
      : map(map),
        bytes(Config::kLines * block.seen() * static_cast<int>(a.pitch.n) * Strips::kPixel),
        stage((bytes + kLine - 1) / kLine * kLine),
        next_box{block.first, block.left(a), row, block.top_plane(a), block.image},
        base(shared_address(smem_memory)),
        asks(threadIdx.x == 0) {
    ring.full = base + Config::kStages * stage;
    ring.done = ring.full + Config::kStages * 8;
  }
  __device__ __forceinline__ void begin(int steps) {
    if (asks) {
      prefetch_tensormap(map);
      for (int s = 0; s < Config::kStages; ++s) {
        mbarrier_init(ring.full + s * 8, 1);
        mbarrier_init(ring.done + s * 8, Config::kThreads / 32);
      }
      fence_mbarrier_init();
      for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
    }
  }
  // The engine writes where threads wrote and read; behind this all of them see the barriers too.
  __device__ __forceinline__ void weights_read() const {
    fence_proxy_async();
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
    mbarrier_arrive_expect_tx(ring.full + place * 8, bytes);
    tma_load(base + place * stage, map, ring.full + place * 8, next_box, createpolicy_evict_last());
    next_box.at[2] += Config::kLines;
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ weight, const T* __restrict__ bias, const T* __restrict__ residual,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Strips::Problem problem = Strips::problem_of(weight, bias, residual, y, a);
  const Strips::Block block(problem);
  const Strips::Range range = block.range(problem);
  Rows of_x(a.x, block, problem, range.row);
  Strips::walk(problem, block, range, of_x, smem_memory);
}
