// kernels/norm/channel_block_backward.cu with the rows of a vector of channels shared out to a cluster of blocks.

#include "dnnarray/core/cluster.cuh"

#define DNNARRAY_TOGETHER DNNARRAY_CLUSTER(Config::kBlocks)
#include "norm/channel_block_backward.cu"
