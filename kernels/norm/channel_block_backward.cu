// The gradient of kernels/norm/channel_block.cu in one launch: with z the value before the activation, g = act'(grad,
// z), dresidual = g, dx = rstd * (g * weight - average(g * weight) - u * average(g * weight * u)), dweight = sum(g *
// u), dbias = sum(g), u = (x - mean) * rstd. Statistics that were not saved are found from x.
//
// Layout:  block g owns channel g of the whole batch, or (kGroup) group g of each of the up to kRows batch indices, one
//          to each of kRows equal parts of its threads, in registers; thread t of a part the vectors t, t + kLanes, ...
//          of its `vectors`, in images of `each`. kGroup: the sums of vectors (kLast: of channels) of threads meet in
//          shared memory, where a warp adds up those of a channel. kLast: as in channel_block.cu; kVector neighbouring
//          channels without kGroup, whose batch indices may have statistics of their own, and then (kApart) a cluster
//          of kBlocks may share out these in place of rows.
// Needs:   an image (kLast: the channels, a group) a multiple of kVector elements; at most kLanes kVectors vectors; a
//          part of whole warps; pointers aligned to kVector elements; fewer than 2^31 elements; kLast: kLanes at least
//          `each`.
// Bound:   latency.

#include "dnnarray/core/activation.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGroup = false;
  static constexpr bool kLast = false;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 2;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 1;
  static constexpr int kRows = 1;
  static constexpr bool kApart = false;
};
struct Arguments {
  const void* weight;
  const void* bias;
  const void* given_mean;
  const void* given_rstd;
  void* dweight;
  void* dbias;
  int vectors;
  int each;
  long long each_divisor;
  int pitch;
  int span;
  long long wide;
  int members;
  long long rows;
  double share;
  double eps;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_block_backward_default
#endif

#include "norm/channel_block_backward_body.cuh"

// What every configuration reads comes first: each 64 bytes of arguments are a miss of the constant cache, 0.05 us.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const Config::Element* __restrict__ grad, const Config::Element* __restrict__ x,
                   Config::Element* __restrict__ dx, const Config::Element* __restrict__ residual,
                   Config::Element* __restrict__ dresidual, const __grid_constant__ Arguments a) {
  differentiate_block(grad, x, dx, residual, dresidual, a);
}
