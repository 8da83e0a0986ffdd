// kernels/norm/channel_block.cu with the rows of a vector of channels shared out to a cluster of blocks: what a block
// of many rows takes is time for its lines.
//
// Layout:  as in channel_block.cu with kBlocks > 1: each block of a cluster owns an equal share of the rows, and the
//          blocks exchange their sums through distributed shared memory.
// Bound:   latency: all that is read is under way at once.

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
};
struct Arguments {
  const void* weight;
  const void* bias;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of;
  int vectors;
  int each;
  long long each_divisor;
  int pitch;
  int span;
  long long wide;
  int members;
  double share;
  double eps;
  const void* running_mean;
  const void* running_var;
  void* next_mean;
  void* next_var;
  double count;
  double momentum;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_block_cluster_default
#endif

#include "norm/channel_block_body.cuh"

// What every configuration reads comes first: each 64 bytes of arguments are a miss of the constant cache, 0.05 us.
extern "C" __global__ void DNNARRAY_CLUSTER(Config::kBlocks) __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const Config::Element* __restrict__ x, Config::Element* __restrict__ y,
                   const Config::Element* __restrict__ residual, const __grid_constant__ Arguments a) {
  normalize_block(x, y, residual, a);
}
