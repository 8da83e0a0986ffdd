// Gradients of the cross entropy of each row: dz = g (sum(s) softmax(z) - s), where s is the smoothed target times the class weights;
// for probabilities dq = -g (1 - e) w log_softmax(z) too.
//
// Layout:  z (rows, classes), the classes next to each other. kLanes threads own a row, each kKeep vectors of it in registers and then
//          `held` in shared memory; what a longer row has beyond is read again, backwards, since its end is still in the cache (kLong: there are such
//          rows). kRagged: as in
//          cross_entropy_rows.
// Needs:   pointers aligned to kVector elements.
// Bound:   memory: scores read once, gradients written once (long rows: read twice, the second time mostly from L2).

#include "dnnarray/scores.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  static constexpr bool kRowGradients = false;
  static constexpr bool kRagged = false;
  static constexpr bool kLong = true;
  static constexpr int kVector = 4;
  static constexpr int kKeep = 8;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY cross_entropy_backward_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;
constexpr int kStep = Config::kLanes * kVector, kBatch = 16 / kVector < 4 ? 16 / kVector : 4;
constexpr bool kShares = Config::kProbabilities || Config::kSmoothing, kLong = Config::kLong;

__device__ __forceinline__ V read(const T* p, long long at, long long size) {
  if constexpr (!Config::kRagged) {
    return load<T, kVector>(p + at);
  } else {
    if (at + kVector <= size) return load<T, kVector>(p + at);
    V part;
#pragma unroll
    for (int v = 0; v < kVector; ++v) part.at[v] = at + v < size ? p[at + v] : narrow<T>(A(0));
    return part;
  }
}

struct Row {
  long long start, end, size;
  A smoothing, spread;
  const T *q, *weight;
};

using RowMask = Mask<Config::kRagged, kVector>;

__device__ __forceinline__ void write(T* p, long long at, const V& part, const Row& row) {
  if (!Config::kRagged || (at >= row.start && at + kVector <= row.end)) {
    store(p + at, part);
  } else {
    const RowMask mask(at, row.start, row.end);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (mask.has(v)) p[at + v] = part.at[v];
    }
  }
}

__device__ __forceinline__ A class_weight(const Row& row, long long at) { return row.weight ? widen(row.weight[at - row.start]) : A(1); }

__device__ __forceinline__ A share_of(const Row& row, long long at) {
  const A own = Config::kProbabilities ? smoothed(widen(row.q[at]), row.smoothing, row.spread) : A(1);
  return own * class_weight(row, at);
}

template <bool kWhole>
__device__ __forceinline__ void take(Scores<A>& found, const V& part, const Row& row, long long at) {
  const Mask<Config::kRagged && !kWhole, kVector> mask(at, row.start, row.end);
  A values[kVector], scores[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    values[v] = scores[v] = mask.has(v) ? widen(part.at[v]) : -infinity(A(0));
  }
  found.raise(larger(found.peak, in_pairs(scores, Larger())));
  found.add(values);
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    if (kShares && mask.has(v)) found.share += share_of(row, at + v);
  }
}

// A vector of the row, whether or not it holds elements of its neighbours.
__device__ __forceinline__ void take(Scores<A>& found, const V& part, const Row& row, long long at) {
  if (!Config::kRagged || (at >= row.start && at + kVector <= row.end)) {
    take<true>(found, part, row, at);
  } else {
    take<false>(found, part, row, at);
  }
}

// `count` vectors of the row, kStep elements apart: all are asked for before the first is looked at.
__device__ __forceinline__ void fetch(V (&part)[kBatch], const T* z, long long at, int count, const Row& row) {
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
    if (u < count && at + u * kStep < row.end) part[u] = read(z, at + u * kStep, row.size);
  }
}

__device__ __forceinline__ void take(Scores<A>& found, const V (&part)[kBatch], long long at, int count, const Row& row) {
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
    if (u < count && at + u * kStep < row.end) take(found, part[u], row, at + u * kStep);
  }
}

// Of a row: dz = both * exp(z - base) - scale * share, less `hard` at the class standing at `label`;
// dq = target * w * (z - base - log_sum).
struct Factors {
  A base, both, scale, hard, target, log_sum;
  long long label;
};

__device__ __forceinline__ void put(const V& part, const Factors& f, const Row& row, T* dz, T* dq, long long at) {
  const RowMask mask(at, row.start, row.end);
  const int label = f.label - at < kVector && f.label >= at ? static_cast<int>(f.label - at) : -1;
  V result, other;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const A z = widen(part.at[v]) - f.base;
    A d = f.both * quick_exp(z);
    if (kShares && mask.has(v)) d -= f.scale * share_of(row, at + v);
    if (!Config::kProbabilities && v == label) d -= f.hard;
    result.at[v] = narrow<T>(d);
    if (Config::kProbabilities && mask.has(v)) other.at[v] = narrow<T>(f.target * class_weight(row, at + v) * (z - f.log_sum));
  }
  write(dz, at, result, row);
  if constexpr (Config::kProbabilities) write(dq, at, other, row);
}

__device__ __forceinline__ Factors factors(const Scores<A>& found, const Row& row, const Config::Target* target, long long r, A own,
                                           long long classes, long long ignore) {
  Factors f{finite_base(found.peak), own * found.share / found.sum, own, A(0), -own * (A(1) - row.smoothing), log_of(found.sum), -1};
  if constexpr (!Config::kProbabilities) {
    const Label label(target[r], classes, ignore);
    f.hard = label.weight(row.weight) * own * (A(1) - row.smoothing);
    f.scale = own * row.spread;
    f.both = (Config::kSmoothing ? f.hard + f.scale * found.share : f.hard) / found.sum;
    f.label = row.start + label.index;
    if (!label.kept) f.hard = f.scale = f.both = A(0);
  }
  return f;
}

// `grad` holds the gradient of each row's loss or (kRowGradients false) that of their sum over *total, or over `divisor` where that is
// not given.
extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ z, const Config::Target* __restrict__ target,
                   const T* __restrict__ weight, const A* __restrict__ total, T* __restrict__ dz, T* __restrict__ dq, long long rows,
                   long long classes, long long held, long long ignore, double smoothing, double divisor) {
  constexpr int kLanes = Config::kLanes, kKeep = Config::kKeep;
  extern __shared__ __align__(16) char dnn_smem[];
  __shared__ A shared[Config::kThreads / kWarp];
  const long long r = static_cast<long long>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const T* q = reinterpret_cast<const T*>(target);  // where the target holds probabilities
  const Row row{r * classes, r < rows ? (r + 1) * classes : r * classes, rows * classes, A(smoothing), A(smoothing / classes), q, weight};
  const long long first = (Config::kRagged ? row.start - row.start % kVector : row.start) + threadIdx.x % kLanes * kVector;
  Scores<A> found;
  V kept[kKeep];
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    if (first + k * kStep < row.end) kept[k] = read(z, first + k * kStep, row.size);
  }
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    if (first + k * kStep < row.end) take(found, kept[k], row, first + k * kStep);
  }
  V* line = reinterpret_cast<V*>(dnn_smem) + threadIdx.x;
  const long long second = first + kKeep * kStep, third = second + held * kStep;
  V part[kBatch];
  for (int k = 0; kLong && k < held && second + k * kStep < row.end; k += kBatch) {
    const int count = held - k < kBatch ? held - k : kBatch;
    fetch(part, z, second + k * kStep, count, row);
    take(found, part, second + k * kStep, count, row);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (u < count) line[(k + u) * Config::kThreads] = part[u];
    }
  }
  long long at = third;
  for (; kLong && at < row.end; at += kBatch * kStep) {
    fetch(part, z, at, kBatch, row);
    take(found, part, at, kBatch, row);
  }
  combine<kLanes, Config::kThreads, kShares>(found, shared);
  if (r >= rows) return;
  const A own = Config::kRowGradients ? widen(grad[r]) : widen(grad[0]) / (total ? *total : A(divisor));
  const Factors f = factors(found, row, target, r, own, classes, ignore);
  for (at -= kBatch * kStep; kLong && at >= third; at -= kBatch * kStep) {
    fetch(part, z, at, kBatch, row);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (at + u * kStep < row.end) put(part[u], f, row, dz, dq, at + u * kStep);
    }
  }
#pragma unroll
  for (int k = 0; k < kKeep; ++k) {
    if (first + k * kStep < row.end) put(kept[k], f, row, dz, dq, first + k * kStep);
  }
#pragma unroll 2
  for (int k = 0; kLong && k < held; ++k) {
    if (second + k * kStep < row.end) put(line[k * Config::kThreads], f, row, dz, dq, second + k * kStep);
  }
}
