// Batch, group and instance norm of small arrays in one launch: y = act((x - mean) * scale + shift + residual).
//
// Layout:  block (g, b) owns a statistic: channel g of the whole batch, or (kGroup) group g of batch index b, `vectors`
//          vectors in images of `each`, in registers; thread t the vectors t, t + kThreads, ... kLast: channels run
//          fastest; a block owns kVector neighbouring channels of b, a vector of each row, or (kGroup) group g, `each`
//          vectors of each row; kBlocks > 1: a cluster of so many does, each an equal share of the rows.
// Needs:   an image (kLast: the channels, a group) a multiple of kVector elements; at most kThreads kVectors vectors;
//          pointers aligned to kVector elements; fewer than 2^31 elements; kLast: kThreads at least `each`.
// Bound:   latency: all that is read is under way at once. The mean, then the distances from it; sums of threads in the
//          arithmetic type, in a fixed order.

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
#define DNNARRAY_ENTRY norm_channel_block_default
#endif

#include "norm/channel_block_body.cuh"

// What every configuration reads comes first: each 64 bytes of arguments are a miss of the constant cache, 0.05 us.
extern "C" __global__ void __launch_bounds__(Config::kThreads, 1)
    DNNARRAY_ENTRY(const Config::Element* __restrict__ x, Config::Element* __restrict__ y,
                   const Config::Element* __restrict__ residual, const __grid_constant__ Arguments a) {
  normalize_block(x, y, residual, a);
}
