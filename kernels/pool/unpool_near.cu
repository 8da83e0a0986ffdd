// Unpooling in channels-last memory where what is put back lies near where it came from: y = 0, but y[n, indices[n, i, c], c] = x[n, i, c], the last i
// where several name a place.
//
// Layout:  x is (N, height, width, C), y likewise. A block owns kGroup channels of `rows` rows of y. It reads the indices of those rows of x that lie
//          there in proportion, and of one to each side, and notes in shared memory for each place the last i that names it (a maximum of integers, so
//          that the order of the threads does not show), beside two bytes of the element; a larger element takes a word for each two bytes. Then it
//          writes its rows of y by vectors. Whether an index of its own rows of x names a place whose block does not see it, is noted in gmem_strays, one
//          word a block; for the planes where one is set, unpool_planes.cu does the work again. An index that is no position is left out.
// Needs:   pointers and C aligned to kWide elements; planes of x below 65,535 elements, those of y below 2^31; dynamic shared memory of twice an element
//          for each of `rows` x its width x kGroup.
// Bound:   memory: indices and x read once (what blocks share meets in the L2), y written once.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kGroup = 8;
  static constexpr int kWide = 4;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY pool_unpool_near_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Index = Config::Index;
constexpr int kGroup = Config::kGroup, kWide = Config::kWide, kThreads = Config::kThreads, kFlight = 6, kParts = sizeof(T) / 2;
struct Parts {
  unsigned short at[kParts];
};

// Rows of x, as places [begin, end).
struct Seen {
  int begin, end;
};
struct Extents {
  int x_height, x_width, y_height, y_width, rows;  // rows of y of a block
  Divider by_height;                               // of y

  // What a block of rows of y looks at: what lies there in proportion, and `sides` rows to each side.
  __device__ __forceinline__ Seen seen(int chunk, int sides) const {
    const int first = chunk * rows, last = min(first + rows, y_height);
    const int begin = static_cast<int>(by_height(static_cast<long long>(first) * x_height).quotient);
    const int end = static_cast<int>(by_height(static_cast<long long>(last) * x_height).quotient);
    return {max(begin - sides, 0) * x_width, min(end + sides, x_height) * x_width};
  }
};

struct Block {
  const T* x;  // from here on everything of this batch item and these channels
  const Index* indices;
  int channels, mine;       // in memory, and how many of them are the block's
  int begin, length, room;  // its places, and how many there is room for
  Seen all, own;            // what it looks at, and what it answers for
  int before, behind;       // up to where the block before looks, and from where on the next

  // Raises the marks of the places that are named; returns whether an index that the block answers for names a place whose block does not see it.
  __device__ __forceinline__ bool mark(unsigned* smem_marks, int y_size) const {
    bool stray = false;
    const int count = (all.end - all.begin) * kGroup;
    for (int first = threadIdx.x; first < count; first += kThreads * kFlight) {
      long long named[kFlight];
      Parts reg_x[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        const int t = first + f * kThreads, c = t % kGroup;
        named[f] = -1;
        if (t >= count || c >= mine) continue;
        const long long at = static_cast<long long>(all.begin + t / kGroup) * channels + c;
        named[f] = static_cast<long long>(indices[at]);
        const T element = x[at];
        memcpy(&reg_x[f], &element, sizeof element);
      }
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (named[f] < 0 || named[f] >= y_size) continue;
        const int t = first + f * kThreads, i = all.begin + t / kGroup, local = static_cast<int>(named[f]) - begin;
        if (local >= 0 && local < length) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            atomicMax(smem_marks + (part * room + local) * kGroup + t % kGroup, static_cast<unsigned>(i + 1) << 16 | reg_x[f].at[part]);
          }
        } else if (i >= own.begin && i < own.end) {
          stray = stray || !(local < 0 ? local >= -room && i < before : local < 2 * room && i >= behind);
        }
      }
    }
    return stray;
  }

  // kWide results from place and channel `t` on.
  __device__ __forceinline__ Vec<T, kWide> results(const unsigned* smem_marks, int t) const {
    Parts elements[kWide];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Vec<unsigned, kWide> words = load_wide<unsigned, kWide>(smem_marks + part * room * kGroup + t);
#pragma unroll
      for (int j = 0; j < kWide; ++j) elements[j].at[part] = static_cast<unsigned short>(words.at[j]);
    }
    Vec<T, kWide> y;
    memcpy(&y, elements, sizeof y);
    return y;
  }
};

// `chunks` and `groups` say how many parts of the rows and of the channels there are.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, const Index* __restrict__ gmem_indices, T* __restrict__ gmem_y, int* __restrict__ gmem_strays,
                   long long channels64, long long heights, long long widths, long long rows, long long by_height0, long long by_height1, long long chunks,
                   long long groups) {
  extern __shared__ __align__(16) unsigned smem_marks[];
  const Extents extents{high(heights), high(widths), low(heights), low(widths), static_cast<int>(rows), Divider(by_height0, by_height1)};
  const int channels = static_cast<int>(channels64), x_size = extents.x_height * extents.x_width, y_size = extents.y_height * extents.y_width;
  const Split by_chunk = split(blockIdx.x, static_cast<int>(chunks)), by_group = split(by_chunk.quotient, static_cast<int>(groups));
  const int chunk = by_chunk.rest, c = by_group.rest * kGroup, room = extents.rows * extents.y_width, begin = chunk * room;
  const long long x = by_group.quotient * x_size * channels + c, y = by_group.quotient * y_size * channels + c;
  const Block block{gmem_x + x, gmem_indices + x, channels, min(channels - c, kGroup), begin, min(y_size - begin, room), room, extents.seen(chunk, 1),
                    extents.seen(chunk, 0), chunk > 0 ? extents.seen(chunk - 1, 1).end : 0, chunk + 1 < chunks ? extents.seen(chunk + 1, 1).begin : x_size};

  constexpr int kClear = 16 / sizeof(unsigned);
  for (int t = threadIdx.x * kClear; t < kParts * room * kGroup; t += kThreads * kClear) store(smem_marks + t, Vec<unsigned, kClear>{});
  __syncthreads();
  const int strays = __syncthreads_or(block.mark(smem_marks, y_size));
  if (threadIdx.x == 0) gmem_strays[blockIdx.x] = strays;
  for (int t = threadIdx.x * kWide; t < block.length * kGroup; t += kThreads * kWide) {
    if (t % kGroup >= block.mine) continue;
    store(gmem_y + y + static_cast<long long>(begin + t / kGroup) * channels + t % kGroup, block.results(smem_marks, t));
  }
}
