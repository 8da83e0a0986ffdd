// dx[n, c, pixel] = sum over the entries of a pixel's list of weight * g[n, c, source], in the order of the list: the
// same bits from run to run.
//
// Layout:  entries (N, length), sliced unless kChannelsLast, with starts (N, pixels + 1); g (N, C, group) and dx (N, C,
//          pixels), or with kChannelsLast the channels fastest in both. A thread owns kVector channels of a pixel:
//          neighbours in memory with kChannelsLast (neighbouring threads have neighbouring channels), else channels
//          `group` apart (neighbouring threads have neighbouring pixels).
// Needs:   with kChannelsLast pointers aligned to kVector elements and C a multiple of kVector.
//          kOneList: the lists of all images are one, and a source s is element s % group of the planes of s / group.
// Bound:   the look-ups of g in L2.

#include "dnnarray/core/vec.cuh"
#include "spatial/lists.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kChannelsLast = true;
  static constexpr bool kOneList = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long channels;
  long long pixels;
  long long length;
  long long batch;
  long long group;
};
#define DNNARRAY_ENTRY spatial_list_gather_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kAhead = 4;
constexpr bool kLast = Config::kChannelsLast, kOne = Config::kOneList;
using V = Vec<T, kVector>;

// kVector channels at an element; `here` of them exist.
__device__ __forceinline__ V read(const T* at, long long step, int here) {
  if constexpr (kLast) return load<T, kVector>(at);
  V found;
#pragma unroll
  for (int v = 0; v < kVector; ++v) found.at[v] = at[(v < here ? v : 0) * step];
  return found;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Entry<A>* __restrict__ entries,
                   const unsigned* __restrict__ starts, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  const long long batch = a.batch, channels = a.channels, pixels = a.pixels, group = a.group, length = a.length;
  const long long chunks = (channels + kVector - 1) / kVector, all = (kOne ? batch : 1) * pixels;  // targets of a list
  const long long padded = (all + 31) / 32 * 32;
  long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= (kOne ? 1 : batch) * (kLast ? all : padded) * chunks) return;
  const long long front = split(index, kLast ? chunks : padded), middle = split(index, kLast ? all : chunks),
                  list = index;
  const long long target = kLast ? middle : front, c = (kLast ? front : middle) * kVector;
  long long n = target < all ? target : all - 1;
  const long long pixel = split(n, pixels);
  n += list;
  const int here = c + kVector < channels ? kVector : static_cast<int>(channels - c);
  const unsigned* start = starts + list * (all + 1);
  const unsigned from = start[target < all ? target : all], to = start[target + 1 < all ? target + 1 : all];
  const T* own = grad + (kOne ? 0 : n * channels * group) + c * (kLast ? 1 : group);
  const auto at = [&](unsigned s) {
    if (kLast) return own + s * channels;
    if (!kOne) return own + s;
    const unsigned front = s / static_cast<unsigned>(group);
    return own + (front * channels * group + (s - front * static_cast<unsigned>(group)));
  };
  A total[kVector] = {};
  const auto add = [&](const Entry<A>(&found)[kAhead], unsigned left) {
    V part[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) part[u] = read(at(found[u].source), group, here);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (u >= left) break;
#pragma unroll
      for (int v = 0; v < kVector; ++v) total[v] += widen(part[u].at[v]) * found[u].weight;
    }
  };
  if constexpr (kLast) {
    for_each_entry<kAhead>(entries + list * length, from, to, add);
  } else {
    for_each_sliced<kAhead>(entries + list * length, from, to, add);
    if (target >= all) return;
  }
  V result;
#pragma unroll
  for (int v = 0; v < kVector; ++v) result.at[v] = narrow<T>(total[v]);
  if constexpr (kLast) {
    store(dx + (n * pixels + pixel) * channels + c, result);
  } else {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (v < here) dx[(n * channels + c + v) * pixels + pixel] = result.at[v];
    }
  }
}
