// kernels/norm/channel_block_backward.cu with the rows of a vector of channels shared out to a cluster of blocks.
//
// Layout:  as in channel_block_backward.cu with kLast: each block of a cluster owns an equal share of the rows, and the
//          blocks exchange their sums through distributed shared memory.
// Bound:   latency.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/cluster.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGroup = false;
  static constexpr bool kLast = true;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 2;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 2;
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
#define DNNARRAY_ENTRY norm_channel_block_backward_cluster_default
#endif

#include "norm/channel_block_backward_body.cuh"

// What every configuration reads comes first: each 64 bytes of arguments are a miss of the constant cache, 0.05 us.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kBlocks) __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const Config::Element* __restrict__ grad, const Config::Element* __restrict__ x,
                   Config::Element* __restrict__ dx, const Config::Element* __restrict__ residual,
                   Config::Element* __restrict__ dresidual, const __grid_constant__ Arguments a) {
  differentiate_block(grad, x, dx, residual, dresidual, a);
}
