// kernels/norm/channel_block.cu with the rows of a vector of channels shared out to a cluster of blocks: what a block of many rows takes is time for its lines.

#include "dnnarray/core/cluster.cuh"

#define DNNARRAY_TOGETHER DNNARRAY_CLUSTER(Config::kBlocks)
#include "norm/channel_block.cu"
