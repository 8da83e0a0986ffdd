// list_gather.cu for channels that fit into shared memory: dx[n, c, pixel] = sum over the entries of a pixel's list of
// weight * g[n, c, source].
//
// Layout:  entries (N, length), sliced, with starts (N, pixels + 1); g (N, C, sources), dx (N, C, pixels). A block owns
//          kPlanes channels of an image, which it copies into shared memory; a thread the pixels kThreads apart.
// Needs:   pointers aligned to kVector elements, sources a multiple of kVector.
// Bound:   the lists, read by each block from L2, and the conflicts of the look-ups in shared memory.

#include "dnnarray/core/reduce.cuh"
#include "spatial/lists.cuh"
#include "spatial/planes.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kPlanes = 2;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 1024;
};
struct Arguments {
  long long channels;
  long long pixels;
  long long length;
  long long sources;
};
#define DNNARRAY_ENTRY spatial_list_gather_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kPlanes = Config::kPlanes, kThreads = Config::kThreads, kAhead = 12;

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Entry<A>* __restrict__ entries,
                   const unsigned* __restrict__ starts, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  const long long channels = a.channels, pixels = a.pixels, sources = a.sources, length = a.length;
  extern __shared__ __align__(16) char dnn_smem[];
  Vec<T, kPlanes>* planes = reinterpret_cast<Vec<T, kPlanes>*>(dnn_smem);
  const unsigned groups = static_cast<unsigned>((channels + kPlanes - 1) / kPlanes);
  const long long n = blockIdx.x / groups, first = static_cast<long long>(blockIdx.x % groups) * kPlanes;
  const int here = first + kPlanes < channels ? kPlanes : static_cast<int>(channels - first);
  interleave<kPlanes, Config::kVector, kThreads>(planes, grad + (n * channels + first) * sources, sources, sources,
                                                 here);
  __syncthreads();
  const unsigned* start = starts + n * (pixels + 1);
  const Entry<A>* own = entries + n * length;
  T* target = dx + (n * channels + first) * pixels;
  const long long lane = threadIdx.x % kWarp;
  const auto start_of = [&](long long pixel) { return start[pixel < pixels ? pixel : pixels]; };
  long long front = threadIdx.x / kWarp * kWarp;
  unsigned from = start_of(front + lane), to = start_of(front + lane + 1);
  for (; front < pixels; front += kThreads) {
    const long long pixel = front + lane;
    const unsigned next_from = start_of(pixel + kThreads), next_to = start_of(pixel + kThreads + 1);  // fetched ahead
    A total[kPlanes] = {};
    for_each_sliced<kAhead>(own, from, to, [&](const Entry<A>(&found)[kAhead], unsigned left) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (u >= left) break;
        const Vec<T, kPlanes> part = planes[found[u].source];
#pragma unroll
        for (int c = 0; c < kPlanes; ++c) total[c] += widen(part.at[c]) * found[u].weight;
      }
    });
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      if (c < here && pixel < pixels) target[c * pixels + pixel] = narrow<T>(total[c]);
    }
    from = next_from;
    to = next_to;
  }
}
