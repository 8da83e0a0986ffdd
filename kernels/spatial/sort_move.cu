// Keys and their places, stably ordered by one digit: the second half of a pass of the radix sort. kFirst: the places are the numbers of the
// keys in their segment, and a key that names no bucket becomes `buckets`.
//
// Layout:  as sort_count.cu. A warp owns neighbouring keys of the block's part and takes 32 at a time (kAhead times as many are fetched together);
//          those with the same digit find each other and go behind one another, at the place that all blocks and warps before leave to them.
// Bound:   latency; keys and places are read once and written once.

#include "dnnarray/sort.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Key = unsigned;
  static constexpr bool kFirst = true;
  static constexpr int kBits = 8;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY sort_move_default
#endif

using namespace dnnarray;
constexpr int kThreads = Config::kThreads, kBits = Config::kBits, kBins = 1 << kBits, kWarps = kThreads / kWarp, kAhead = 4;

__shared__ unsigned smem_next[kWarps][kBins], smem_base[kBins], smem_before[kBins], smem_sums[kWarps];

// Where the keys of each digit go: smem_base, all of smaller digits and those of the parts before.
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
    smem_before[d] = before;
    smem_base[d] = all;
  }
  __syncthreads();
  exclusive_scan<kBins, kThreads>(smem_base, smem_sums);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const Config::Key* __restrict__ keys, const unsigned* __restrict__ places, const unsigned* __restrict__ table,
                   unsigned* __restrict__ moved_keys, unsigned* __restrict__ moved_places, long long length, long long parts, long long shift,
                   long long buckets, long long left_out) {
  const SortPart part(length, parts);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const long long offset = part.segment * length, each = (part.end - part.start + kWarps - 1) / kWarps;
  const long long start = part.start + warp * each < part.end ? part.start + warp * each : part.end;
  const long long end = start + each < part.end ? start + each : part.end;
  for (int d = lane; d < kBins; d += kWarp) smem_next[warp][d] = 0;
  __syncwarp();
  for (long long i = start + lane; i < end; i += kWarp) {
    atomicAdd(smem_next[warp] + digit_of<kBits>(bucket_of(keys[offset + i], buckets, left_out), shift), 1u);
  }
  find_bases(table, part, parts);
  for (int d = threadIdx.x; d < kBins; d += kThreads) {
    unsigned next = smem_base[d] + smem_before[d];
    for (int w = 0; w < kWarps; ++w) {
      const unsigned count = smem_next[w][d];
      smem_next[w][d] = next;
      next += count;
    }
  }
  __syncthreads();
  for (long long first = start; first < end; first += kAhead * kWarp) {
    unsigned bucket[kAhead], from[kAhead], same[kAhead];
    int digit[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const long long i = first + u * kWarp + lane;
      bucket[u] = i < end ? bucket_of(keys[offset + i], buckets, left_out) : 0u;
      digit[u] = i < end ? digit_of<kBits>(bucket[u], shift) : kBins;
      from[u] = Config::kFirst ? static_cast<unsigned>(i) : i < end ? places[offset + i] : 0u;
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) same[u] = __match_any_sync(kAllLanes, digit[u]);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const unsigned before = same[u] & ((1u << lane) - 1);
      const bool there = digit[u] != kBins;
      const unsigned to = there ? smem_next[warp][digit[u]] + __popc(before) : 0u;
      __syncwarp();
      if (there && before == 0) smem_next[warp][digit[u]] += __popc(same[u]);
      __syncwarp();
      if (!there) continue;
      moved_keys[offset + to] = bucket[u];
      moved_places[offset + to] = from[u];
    }
  }
}
