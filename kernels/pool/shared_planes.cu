// Pooling of planes that fit into shared memory, in channels-first memory: the maximum (with its place), mean or Lp
// norm of every window.
//
// Layout:  a block takes `planes` neighbouring planes, which are one piece of memory, into shared memory by whole
//          vectors, whatever their width; kLanes threads then share the columns of a window and meet by shuffles, in a
//          fixed order. A whole plane as one window counts as a single row.
// Needs:   pointers aligned to kWide elements, and `planes` x H x W a multiple of kWide; dynamic shared memory for
//          them.
// Bound:   memory: x read once.

#include "pool/plane.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 3;
  static constexpr bool kMagnitude = false;
  static constexpr bool kAdaptive = false;
  static constexpr bool kWhole = false;
  static constexpr bool kPairs = false;
  static constexpr int kWide = 4;
  static constexpr int kLanes = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long total;
  long long planes;
  dnnarray::Divider windows;
  dnnarray::Divider outputs;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
  double p;
};
#define DNNARRAY_ENTRY pool_shared_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using R = Config::Result;
using P = Partial<A>;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kLanes = Config::kLanes, kThreads = Config::kThreads;
constexpr int kIndices = 1, kTap = 2, kMean = 3, kNorm = 4, kReduction = Config::kReduction;  // as in direct.cu
constexpr bool kWhole = Config::kWhole;
constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap;

// `total` elements from memory to shared memory; all copies are in flight at once.
__device__ __forceinline__ void stage(T* smem, const T* gmem, int total) {
  const int whole = total / kWide;
  for (int i = threadIdx.x; i < whole; i += kThreads) copy_vector<T, kWide>(smem + i * kWide, gmem + i * kWide);
  for (int i = whole * kWide + threadIdx.x; i < total; i += kThreads) smem[i] = gmem[i];
  wait_for_copies();
  __syncthreads();
}

// The taps of a window that lie in the plane; kLanes threads share its columns.
struct Window {
  const T* x;  // of the first tap
  Taps h, w;
  int row, column, width;  // from one tap to the next; taps of a row
  int lane;

  __device__ __forceinline__ bool empty() const { return h.first == h.last || w.first == w.last; }

  // The reduction; term(x) is the summand or the candidate, and a candidate's place is the number of its tap.
  template <bool kSum, typename Term>
  __device__ __forceinline__ P reduce(Term term) const {
    P own{kSum || Config::kMagnitude ? A(0) : N::lowest(), kNowhere};
    for (int r = h.first; r < h.last; ++r) {
#pragma unroll 4
      for (int s = w.first + lane; s < w.last; s += kLanes) {
        own = combined<kSum, kPlaces>(own, P{term(N::widened(x[r * row + s * column])), r * width + s});
      }
    }
    return combine_lanes<kLanes, kSum, kPlaces>(own);
  }

  __device__ __forceinline__ A norm(A p) const {
    const A sum = reduce<true>([&](A v) { return power(magnitude(v), p); }).value;
    if (__any_sync(kAllLanes, out_of_range(sum))) {
      const A scale = scale_of(reduce<false>([](A v) { return magnitude(v); }).value);
      return scale * root(reduce<true>([&](A v) { return power<A>(magnitude(v) / scale, p); }).value, p);
    }
    return root(sum, p);
  }
};

// The means of whole planes of halves, two planes a thread: together they are whole words, of which the middle one may
// belong to both.
template <typename U>
__device__ __forceinline__ void mean_pairs(R* y, const U* smem, int count, int size) {
  for (int plane = 2 * threadIdx.x; plane < count; plane += 2 * kThreads) {
    const unsigned* words = reinterpret_cast<const unsigned*>(smem + plane * size);
    const int half = size / 2, odd = size % 2;
    float low, high, sum[2] = {};
    widen_pair(low, high, words[half], U());
    if (odd != 0) sum[1] = high;
    const float middle = low;
#pragma unroll 8
    for (int i = 0; i < half; ++i) {
      widen_pair(low, high, words[i], U());
      sum[0] = sum[0] + low + high;
      widen_pair(low, high, words[half + odd + i], U());
      sum[1] = sum[1] + low + high;
    }
    if (odd != 0) sum[0] += middle;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (plane + k < count) y[plane + k] = Number<R>::narrowed(sum[k] / A(size));
    }
  }
}

// `windows` are those of a plane, `outputs` those along W.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, R* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem_x[];
  T* smem = reinterpret_cast<T*>(smem_x);
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const Divider by_plane = a.windows, by_row = a.outputs;
  const long long planes = a.planes, total = a.total;
  const long long first = blockIdx.x * planes;
  const int count = static_cast<int>(total - first < planes ? total - first : planes),
            size = axis_h.extent * axis_w.extent;
  stage(smem, x + first * size, count * size);
  if constexpr (Config::kPairs) {
    mean_pairs(y + first, smem, count, size);
    return;
  }
  const int lane = threadIdx.x % kLanes, results = count * by_plane.divisor;
  for (int begin = 0; begin < results; begin += kThreads / kLanes) {
    const int own = begin + threadIdx.x / kLanes,
              result = own < results ? own : 0;  // those without a result go along, for the shuffles
    const Split plane = kWhole ? Split{result, 0} : by_plane(result), place = kWhole ? Split{0, 0} : by_row(plane.rest);
    const Taps h = kWhole ? Taps{0, 0, 1} : axis_h.taps(static_cast<int>(place.quotient));
    const Taps w = kWhole ? Taps{0, 0, axis_w.extent} : axis_w.taps(place.rest);
    const T* from = smem + static_cast<int>(plane.quotient) * size + h.start * axis_w.extent + w.start;
    const Window window{from, h, w, axis_h.dilation * axis_w.extent, kWhole ? 1 : axis_w.dilation, axis_w.window, lane};
    P found{};
    if constexpr (kReduction == kNorm) {
      found.value = window.norm(A(a.p));
    } else {
      found = window.reduce<kReduction == kMean>([](A v) { return Config::kMagnitude ? magnitude(v) : v; });
      if constexpr (kReduction == kMean) found.value /= A(axis_h.count(h, a.padded)) * A(axis_w.count(w, a.padded));
    }
    if (own >= results || lane != 0) continue;
    if (window.empty()) found.place = -1;
    const long long to = first * by_plane.divisor + own;
    y[to] = kept<kReduction == kTap, R>(found.value, found.place);
    if constexpr (kReduction == kIndices) {
      const int r = found.place / axis_w.window, s = found.place - r * axis_w.window;
      const long long at =
          static_cast<long long>(h.start + r * axis_h.dilation) * axis_w.extent + w.start + s * axis_w.dilation;
      indices[to] = window.empty() ? -1 : at;
    }
  }
}
