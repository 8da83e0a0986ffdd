// Keys and their places, stably ordered by one digit: the second half of a pass of the radix sort. kFirst: the places
// are the numbers of the keys in their segment, and a key that names no bucket becomes `buckets`.
//
// Layout:  as sort_count.cu. A block takes its part in tiles of kTile keys, of which each warp owns neighbours, 32 at a
//          time; those with the same digit find each other and go behind one another. A tile is ordered in shared
//          memory first, so that runs of one digit are written side by side, where all blocks, tiles and digits before
//          leave off.
// Bound:   memory; keys and places are read once and written once.

#include "spatial/sort.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Key = unsigned;
  static constexpr bool kFirst = true;
  static constexpr int kBits = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long length;
  long long parts;
  long long shift;
  long long buckets;
  long long left_out;
};
#define DNNARRAY_ENTRY spatial_sort_move_default
#endif

using namespace dnnarray;
constexpr int kThreads = Config::kThreads, kBits = Config::kBits, kBins = 1 << kBits, kWarps = kThreads / kWarp,
              kEach = 8;
constexpr int kTile = kThreads * kEach;

__shared__ unsigned smem_next[kWarps][kBins];  // where in the tile the next key of a warp with a digit goes
__shared__ unsigned smem_front[kBins];         // where in the tile a digit begins
__shared__ unsigned smem_base[kBins];          // where in the segment the keys of a digit of this tile go
__shared__ unsigned smem_sums[kWarps], smem_keys[kTile], smem_places[kTile];

// The bases of the first tile: behind all smaller digits, and the same digit of the parts before.
__device__ __forceinline__ void find_bases(const unsigned* table, const SortPart& part, long long parts) {
  const unsigned* rows = table + part.segment * parts * kBins;
  for (int d = threadIdx.x; d < kBins; d += kThreads) {
    unsigned before = 0, all = 0;
#pragma unroll 16
    for (int p = 0; p < parts; ++p) {
      const unsigned count = rows[static_cast<long long>(p) * kBins + d];
      all += count;
      if (p < part.number) before += count;
    }
    smem_front[d] = before;
    smem_base[d] = all;
  }
  __syncthreads();
  exclusive_scan<kBins, kThreads>(smem_base, smem_sums);
  for (int d = threadIdx.x; d < kBins; d += kThreads) smem_base[d] += smem_front[d];
  __syncthreads();
}

// The keys of a lane in a tile: bucket and digit, kBins where there is no key.
struct Own {
  unsigned bucket[kEach], place[kEach];
  int digit[kEach];
};

// From how often each warp has each digit to where it goes in the tile.
__device__ __forceinline__ void find_fronts() {
  __syncthreads();
  for (int d = threadIdx.x; d < kBins; d += kThreads) {
    unsigned sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const unsigned count = smem_next[w][d];
      smem_next[w][d] = sum;
      sum += count;
    }
    smem_front[d] = sum;
  }
  __syncthreads();
  exclusive_scan<kBins, kThreads>(smem_front, smem_sums);
  for (int d = threadIdx.x; d < kBins; d += kThreads) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) smem_next[w][d] += smem_front[d];
  }
  __syncthreads();
}

// The tile in order, into shared memory.
__device__ __forceinline__ void order(const Own& own, int warp, int lane) {
  unsigned same[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) same[u] = __match_any_sync(kAllLanes, own.digit[u]);
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const unsigned before = same[u] & ((1u << lane) - 1);
    const bool there = own.digit[u] != kBins;
    const unsigned to = there ? smem_next[warp][own.digit[u]] + __popc(before) : 0u;
    __syncwarp();
    if (there && before == 0) smem_next[warp][own.digit[u]] += __popc(same[u]);
    __syncwarp();
    if (!there) continue;
    smem_keys[to] = own.bucket[u];
    smem_places[to] = own.place[u];
  }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kBlocks = 1;  // left to itself, the compiler keeps registers for more and spills there
#else
constexpr int kBlocks = 0;
#endif
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const Config::Key* __restrict__ keys, const unsigned* __restrict__ places,
                   const unsigned* __restrict__ table, unsigned* __restrict__ moved_keys,
                   unsigned* __restrict__ moved_places, const __grid_constant__ Arguments a) {
  const SortPart part(a.length, a.parts);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const long long offset = part.segment * a.length;
  find_bases(table, part, a.parts);
  for (long long tile = part.start; tile < part.end; tile += kTile) {
    Own own;
    for (int d = lane; d < kBins; d += kWarp) smem_next[warp][d] = 0;
    __syncwarp();
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const long long i = tile + (warp * kEach + u) * kWarp + lane;
      own.bucket[u] = i < part.end ? bucket_of(keys[offset + i], a.buckets, a.left_out) : 0u;
      own.digit[u] = i < part.end ? digit_of<kBits>(own.bucket[u], a.shift) : kBins;
      own.place[u] = Config::kFirst ? static_cast<unsigned>(i) : i < part.end ? places[offset + i] : 0u;
    }
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (own.digit[u] != kBins) atomicAdd(smem_next[warp] + own.digit[u], 1u);
    }
    find_fronts();
    order(own, warp, lane);
    __syncthreads();
    const int count = part.end - tile < kTile ? static_cast<int>(part.end - tile) : kTile;
    for (int k = threadIdx.x; k < count; k += kThreads) {
      const int digit = digit_of<kBits>(smem_keys[k], a.shift);
      const unsigned to = smem_base[digit] + (k - smem_front[digit]);
      moved_keys[offset + to] = smem_keys[k];
      moved_places[offset + to] = smem_places[k];
    }
    __syncthreads();
    for (int d = threadIdx.x; d < kBins; d += kThreads) {
      smem_base[d] += (d + 1 < kBins ? smem_front[d + 1] : static_cast<unsigned>(count)) - smem_front[d];
    }
    __syncthreads();
  }
}
