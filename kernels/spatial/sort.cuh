// A stable radix sort of keys, in segments: the same order from run to run, however the threads come.
#pragma once

#include "dnnarray/core/reduce.cuh"

namespace dnnarray {

// What a key sorts by: itself, or `buckets` (behind all others) where it names no bucket or the one that is left out.
template <typename Key>
__device__ __forceinline__ unsigned bucket_of(Key key, long long buckets, long long left_out) {
  const long long k = static_cast<long long>(key);
  return static_cast<unsigned>(k >= 0 && k < buckets && k != left_out ? k : buckets);
}

template <int kBits>
__device__ __forceinline__ int digit_of(unsigned bucket, long long shift) {
  return static_cast<int>(bucket >> shift & ((1u << kBits) - 1));
}

// The neighbouring keys [start, end) of a segment that a block owns.
struct SortPart {
  long long segment, number, start, end;

  __device__ __forceinline__ SortPart(long long length, long long parts) {
    segment = blockIdx.x / parts;
    number = blockIdx.x % parts;
    const long long each = (length + parts - 1) / parts;
    start = number * each < length ? number * each : length;
    end = start + each < length ? start + each : length;
  }
};

// Exclusive sums over kBins values, one after the other in `values`; every thread of the block comes. `shared` holds a
// value per warp.
template <int kBins, int kThreads>
__device__ __forceinline__ void exclusive_scan(unsigned* values, unsigned* shared) {
  constexpr int kEach = (kBins + kThreads - 1) / kThreads;
  const int tid = threadIdx.x, lane = tid % kWarp;
  unsigned own[kEach], sum = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    own[k] = tid * kEach + k < kBins ? values[tid * kEach + k] : 0u;
    sum += own[k];
  }
  unsigned upto = sum;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == kWarp - 1) shared[tid / kWarp] = upto;
  __syncthreads();
  unsigned before = upto - sum;
  for (int warp = 0; warp < tid / kWarp; ++warp) before += shared[warp];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (tid * kEach + k < kBins) values[tid * kEach + k] = before;
    before += own[k];
  }
  __syncthreads();
}

// The first of `count` ascending values that is not below `bound`.
__device__ __forceinline__ long long lower_bound(const unsigned* values, long long count, unsigned bound) {
  long long low = 0, high = count;
  while (low < high) {
    const long long middle = (low + high) / 2;
    if (values[middle] < bound) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace dnnarray
