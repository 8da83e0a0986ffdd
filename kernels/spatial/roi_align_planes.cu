// y[k, c, p, q] pools the samples of bin (p, q) of box k, for planes that fit into shared memory and kRatio samples
// along each side of a bin: their mean, or the largest weighted pixel of all samples.
//
// The samples of a bin are a grid, kRatio down times kRatio across, and read four pixels each. A lane owns one sample
// across and every kDown-th one down, of one bin, and walks down kGroup rows of bins; then the kLanes lanes of a bin
// add up, each those of another row. Samples that do not count read zeros that stand behind the plane.
//
// Layout:  x (N, C, height, width), y (K, C, p, q); samples and images of the boxes by roi_align_sides.cu. A block owns
//          a plane of x. While that is on its way to shared memory, the boxes of the image are listed, and in the first
//          image's planes those that are not valid, which give NaN; the warps take turns at the list, so that none has
//          more than one box more than another.
// Needs:   pointers aligned to kVector elements, height * width a multiple of it; width more elements of shared memory;
//          fewer than 2^31 boxes.
// Bound:   memory: x read once, y written once; the look-ups in shared memory.

#include "dnnarray/core/cluster.cuh"
#include "spatial/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr int kRatio = 2;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 1024;
};
struct Arguments {
  long long channels;
  long long height;
  long long width;
  long long count;
  long long p;
  long long q;
  long long rows;
};
#define DNNARRAY_ENTRY spatial_roi_align_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRatio = Config::kRatio, kThreads = Config::kThreads, kWarps = kThreads / kWarp,
              kVector = Config::kVector;
constexpr int kDown = kRatio < 2 ? kRatio : 2, kLanes = kRatio * kDown, kGroup = kLanes < 4 ? kLanes : 4;
using Place = BoxSample<A>;

struct Better {
  __device__ __forceinline__ A operator()(A a, A b) const { return Config::kMaximum ? Max()(a, b) : a + b; }
};

// The sample across of a lane: where its pixels of the first row stand in shared memory, and their weights; bytes to
// the next row, 0 if it does not count.
struct Across {
  unsigned left, right, line;
  A left_weight, right_weight;
};

// The pixels around one sample, weighted: their sum, or the largest. `end` is the distance of the last row.
__device__ __forceinline__ A sampled(const Place& down, const Across& across, unsigned end) {
  const unsigned place = static_cast<unsigned>(down.pixel), row = across.line ? place : 0,
                 step = place < end ? across.line : 0;
  const A here = A(1) - down.part, next = down.part;
  const A a = widen(read_shared<T>(across.left + row)), b = widen(read_shared<T>(across.right + row));
  const A c = widen(read_shared<T>(across.left + row + step)), d = widen(read_shared<T>(across.right + row + step));
  if constexpr (Config::kMaximum) {
    return Max()(Max()(a * (here * across.left_weight), b * (here * across.right_weight)),
                 Max()(c * (next * across.left_weight), d * (next * across.right_weight)));
  }
  return (a * across.left_weight + b * across.right_weight) * here +
         (c * across.left_weight + d * across.right_weight) * next;
}

// A lane's own samples in one row of bins; `down` points at its first.
__device__ __forceinline__ A walk_down(const Place* down, const Across& across, unsigned end) {
  A total = sampled(down[0], across, end);
#pragma unroll
  for (int i = kDown; i < kRatio; i += kDown) total = Better()(total, sampled(down[i], across, end));
  return total;
}

// Of kGroup values of each of kLanes lanes, all lanes' values number `row_of(lane)`.
__device__ __forceinline__ A reduce(A (&values)[kGroup], int lane) {
#pragma unroll
  for (int half = kGroup / 2, bit = 1; half > 0; half /= 2, bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const A other = __shfl_xor_sync(kAllLanes, upper ? values[i] : values[i + half], bit);
      values[i] = Better()(upper ? values[i + half] : values[i], other);
    }
  }
  A result = values[0];
#pragma unroll
  for (int bit = kGroup; bit < kLanes; bit *= 2) result = Better()(result, __shfl_xor_sync(kAllLanes, result, bit));
  return result;
}
__device__ __forceinline__ int row_of(int lane) { return kGroup == 4 ? lane % 2 * 2 + lane / 2 % 2 : 0; }

// All bins of a box; `y` points at the first, `samples` at those down, of `rows` rows (a multiple of kGroup), behind
// which stand those across.
__device__ __forceinline__ void pool(unsigned plane, unsigned zeros, unsigned line, const Place* samples, int rows,
                                     T* y, int p, int q) {
  const int lane = threadIdx.x % kWarp;
  const Place *downs = samples + lane % kDown, *acrosses = samples + rows * kRatio;
  for (int front = 0; front < q * kLanes; front += kWarp) {
    const int own = (front + lane) / kLanes;
    const Place across = acrosses[own < q ? (front + lane) / kDown : 0];
    const bool there = across.pixel >= 0;
    const unsigned left = plane + static_cast<unsigned>(across.pixel);
    const bool inner = static_cast<unsigned>(across.pixel) + sizeof(T) < line;
    const A share = Config::kMaximum ? A(1) : A(1) / A(kRatio * kRatio);
    const Across mine{there ? left : zeros, there ? inner ? left + static_cast<unsigned>(sizeof(T)) : left : zeros,
                      there ? line : 0, (A(1) - across.part) * share, across.part * share};
    const int first = own < q && lane % kLanes < kGroup ? row_of(lane) : p;
    T* to = y + first * q + own;
#pragma unroll 1
    for (int row = 0; row < p; row += kGroup) {
      const Place* here = downs + row * kRatio;
      A totals[kGroup];
#pragma unroll
      for (int g = 0; g < kGroup; ++g) totals[g] = walk_down(here + g * kRatio, mine, zeros - plane - line);
      const A total = reduce(totals, lane);
      if (row + first < p) *to = narrow<T>(total);
      to += kGroup * q;
    }
  }
}

struct Listed {
  int boxes[kThreads], found[kWarps];
};

// The boxes of image n from box `next` on, as many as there is room for, in their order; of the first image also ~k for
// each box k that is not valid. Returns how many; `next` is the first box that was not looked at.
__device__ __forceinline__ int list_boxes(Listed& list, const int* __restrict__ image_of, int n, int count, int& next) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int length = 0;
  while (next < count) {
    const int k = next + static_cast<int>(threadIdx.x),
              image = static_cast<unsigned>(k) < static_cast<unsigned>(count) ? image_of[k] : -2;
    const unsigned mine = __ballot_sync(kAllLanes, image == n || (image == -1 && n == 0));
    if (lane == 0) list.found[warp] = __popc(mine);
    __syncthreads();
    const int each = lane < kWarps ? list.found[lane] : 0, all = __reduce_add_sync(kAllLanes, each);
    const int before =
        length + __reduce_add_sync(kAllLanes, lane < warp ? each : 0) + __popc(mine & ((1u << lane) - 1));
    if (length + all > kThreads) break;
    if (mine >> lane & 1) list.boxes[before] = image < 0 ? ~k : k;
    length += all;
    next = count - next > kThreads ? next + kThreads : count;
    __syncthreads();
  }
  return length;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Place* __restrict__ samples, const int* __restrict__ image_of,
                   T* __restrict__ y, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char dnn_smem[];
  __shared__ Listed list;
  T* plane = reinterpret_cast<T*>(dnn_smem);
  const int n = static_cast<int>(blockIdx.x / a.channels), size = static_cast<int>(a.height * a.width),
            bins = static_cast<int>(a.p * a.q);
  const long long c = blockIdx.x % a.channels;
  const T* source = x + static_cast<long long>(blockIdx.x) * size;
  for (int i = threadIdx.x * kVector; i < size; i += kThreads * kVector) {
    if constexpr (kVector * sizeof(T) == 16) {
      cp_async_cg(plane + i, source + i);
    } else {
      store(plane + i, load<T, kVector>(source + i));
    }
  }
  for (int i = threadIdx.x; i < a.width; i += kThreads) plane[size + i] = narrow<T>(A(0));
  cp_async_commit_group();
  const unsigned start = shared_address(plane), zeros = start + size * static_cast<unsigned>(sizeof(T));
  for (int next = 0; next < a.count;) {
    const int length = list_boxes(list, image_of, n, static_cast<int>(a.count), next);
    cp_async_wait_group<0>();
    __syncthreads();
    for (int i = threadIdx.x / kWarp; i < length; i += kWarps) {
      const int entry = list.boxes[i];
      const long long k = entry < 0 ? ~entry : entry;
      T* to = y + (k * a.channels + c) * bins;
      if (entry >= 0) {
        pool(start, zeros, static_cast<unsigned>(a.width * sizeof(T)), samples + k * (a.rows + a.q) * kRatio,
             static_cast<int>(a.rows), to, static_cast<int>(a.p), static_cast<int>(a.q));
      } else {
        for (int bin = threadIdx.x % kWarp; bin < bins; bin += kWarp) to[bin] = narrow<T>(quiet_nan(A(0)));
      }
    }
    __syncthreads();
  }
}
