// Unpooling in a plain memory order: y = 0, but y[n, c, indices[n, c, i]] = x[n, c, i], the last i where several name a
// place.
//
// Layout:  arrays are (outer, place, channels), channels 1 in channels-first. A block owns `chunk` places of kGroup
//          channels of y; it reads all indices of these channels, marks in shared memory each place with the last i
//          that names it (a maximum of integers, so that the order of the threads does not show), then writes its part
//          of y by vectors. A mark has 16 bits, so that few blocks share a plane. An index that is no position is left
//          out. kRepairs: what unpool_tiles.cu has left undone, as its `parts` notes of each plane and group of
//          channels say; a block looks after `own` of these.
// Needs:   pointers, chunk and the places (or the channels and kGroup) aligned to kWide elements; chunk x kGroup even;
//          planes of x below 65,535 elements, those of y below 2^31.
// Bound:   memory: indices and x read once for each chunk of a plane (from the second on out of the caches), y written
//          once.

#include "dnnarray/core/overlap.cuh"
#include "pool/notes.cuh"
#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr bool kRepairs = false;
  static constexpr int kGroup = 1;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  int channels;
  int x_size;
  int y_size;
  int chunk;
  int chunks;
  int groups;
  int span;
  long long parts;
  long long own;
  long long total;
};
#define DNNARRAY_ENTRY pool_unpool_shared_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Index = Config::Index;
constexpr int kGroup = Config::kGroup, kWide = Config::kWide, kThreads = Config::kThreads, kFlight = 4, kFetches = 2;

// marks[at] = the larger of itself and mark; two marks lie in a word.
__device__ __forceinline__ void raise(unsigned* words, int at, unsigned mark) {
  unsigned* const word = words + at / 2;
  const int shift = at % 2 * 16;
  unsigned seen = *word;
  while ((seen >> shift & 0xffffu) < mark) {
    const unsigned was = atomicCAS(word, seen, (seen & ~(0xffffu << shift)) | mark << shift);
    if (was == seen) return;
    seen = was;
  }
}

struct Block {
  const T* x;  // from here on everything of this batch item and these channels
  const Index* indices;
  T* y;
  int channels, mine;  // in memory, and how many of them are the block's
  int begin, length;   // its places

  // Marks the places of the block that the indices name.
  __device__ __forceinline__ void mark(unsigned* smem_marks, int x_size) const {
    for (int first = threadIdx.x; first < x_size * kGroup; first += kThreads * kFlight) {
      long long named[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        const int t = first + f * kThreads, i = t / kGroup, c = t % kGroup;
        named[f] = -1;
        if (i < x_size && c < mine)
          named[f] = static_cast<long long>(indices[static_cast<long long>(i) * channels + c]);
      }
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        const int t = first + f * kThreads;
        const long long local = named[f] - begin;
        if (named[f] >= 0 && local >= 0 && local < length)
          raise(smem_marks, static_cast<int>(local) * kGroup + t % kGroup, t / kGroup + 1);
      }
    }
  }

  // All of its places.
  __device__ __forceinline__ void unpool(int x_size) const {
    extern __shared__ __align__(16) unsigned smem_marks[];
    for (int t = threadIdx.x; t < (length * kGroup + 1) / 2; t += kThreads) smem_marks[t] = 0;
    __syncthreads();
    mark(smem_marks, x_size);
    __syncthreads();
    fetch(reinterpret_cast<const unsigned short*>(smem_marks));
  }

  // The elements that are marked, and zeros; the elements of several vectors are on their way at once.
  __device__ __forceinline__ void fetch(const unsigned short* smem_marks) const {
    for (int first = threadIdx.x * kWide; first < length * kGroup; first += kThreads * kWide * kFetches) {
      Vec<T, kWide> reg_y[kFetches] = {};
#pragma unroll
      for (int f = 0; f < kFetches; ++f) {
        const int t = first + f * kThreads * kWide, c = t % kGroup;
        if (t >= length * kGroup || c >= mine) continue;
        const Vec<unsigned short, kWide> marks = load<unsigned short, kWide>(smem_marks + t);
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (marks.at[j])
            reg_y[f].at[j] = x[static_cast<long long>(marks.at[j] - 1) * channels + (kGroup > 1 ? c + j : 0)];
        }
      }
#pragma unroll
      for (int f = 0; f < kFetches; ++f) {
        const int t = first + f * kThreads * kWide, c = t % kGroup;
        if (t < length * kGroup && c < mine)
          store(y + static_cast<long long>(begin + t / kGroup) * channels + c, reg_y[f]);
      }
    }
  }
};

// `chunks` and `groups` say how many parts of the places and of the channels there are; of repairs, groups are of
// `span` channels, and `total` counts those of all planes.
extern "C" __global__ void __launch_bounds__(kThreads, kGroup > 1         ? 2
                                                       : Config::kRepairs ? 4
                                                                          : 6)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Index* __restrict__ indices, T* __restrict__ y,
                   const unsigned* __restrict__ notes, const __grid_constant__ Arguments a) {
  const int channels = a.channels, x_size = a.x_size, y_size = a.y_size;
  // Places from `begin` on, of the channels from c on of a plane.
  const auto unpool = [&](long long plane, int c, int begin) {
    const long long from = plane * x_size * channels + c, to = plane * y_size * channels + c;
    const Block block{
        x + from, indices + from, y + to, channels, min(channels - c, kGroup), begin, min(y_size - begin, a.chunk)};
    block.unpool(x_size);
  };
  if constexpr (Config::kRepairs) {
    const unsigned* const all_notes = after_previous_kernel(notes);
    const long long own = a.own, parts = a.parts;
    const long long first = blockIdx.x * own, last = min(first + own, a.total);
    // All notes of the items [begin, end).
    const auto noted = [&](long long begin, long long end) {
      unsigned all = 0;
      for (long long i = begin * parts + threadIdx.x; i < end * parts; i += kThreads) all |= all_notes[i];
      return (__syncthreads_or(all & kAtHome) ? kAtHome : 0u) | (__syncthreads_or(all & kNamesNext) ? kNamesNext : 0u) |
             (__syncthreads_or(all & kNamesFar) ? kNamesFar : 0u);
    };
    if (!undone(noted(first, last))) return;
    for (long long item = first; item < last; ++item) {
      if (!undone(noted(item, item + 1))) continue;
      const Split by_group = split(item, a.groups);
      const int first_channel = by_group.rest * a.span, last_channel = min(first_channel + a.span, channels);
      for (int c = first_channel; c < last_channel; c += kGroup) {
        for (int begin = 0; begin < y_size; begin += a.chunk) {
          unpool(by_group.quotient, c, begin);
          __syncthreads();
        }
      }
    }
  } else {
    const Split by_chunk = split(blockIdx.x, a.chunks), by_group = split(by_chunk.quotient, a.groups);
    unpool(by_group.quotient, by_group.rest * kGroup, by_chunk.rest * a.chunk);
  }
}
