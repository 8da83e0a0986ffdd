// Batch norm of medium arrays in channels-last memory, the first of two launches (kernels/norm/folded_apply.cu): for
// each column of the folded rows, of each part of the rows, the distance of the mean from the channel's first value and
// the sum of squares around that mean; kGradient: the sums of g and of g * (x - mean), with z = (x - mean) * rstd *
// weight + bias + residual and g = act'(grad, z).
//
// Layout:  block (s, p) takes slice s of kLanes vectors of columns of part p; a thread has the same kVector columns of
//          each of its rows.
// Needs:   columns a multiple of kVector; pointers aligned to 16 bytes; fewer than 2^30 elements; two rows or more.
// Bound:   memory, or latency: kVectors vectors of each array are under way at once. Sums in the arithmetic type around
//          the mean of a warp, in a fixed order.

#include "dnnarray/core/activation.cuh"
#include "norm/folded.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGradient = false;
  static constexpr bool kResidual = false;
  static constexpr int kLanes = 4;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const Config::Element* x;
  const Config::Element* grad;
  const Config::Element* residual;
  const void* weight;
  const void* bias;
  const void* mean_of;
  const void* rstd_of;
  long long wide;
  int columns;
  int channels;
  int rows;
  int left;
  int parts;
  int part;
  double p;
  double q;
  dnnarray::arithmetic_t<Config::Element>* partial;
};
#define DNNARRAY_ENTRY norm_folded_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kLanes = Config::kLanes;
constexpr bool kGradient = Config::kGradient, kResidual = Config::kResidual,
               kCurved = !is_same<Config::Activation, Identity>;
using Place = FoldedPlace<T, kVector, kLanes, kThreads>;
constexpr int kSlice = Place::kSlice;
using Pieces = Wordwise<T, kVector>[kVectors];

// The mean of the first values of the first warp, for all: what is near the mean of all.
__device__ __forceinline__ void find_origin(A (&origin)[kVector], const Place& place, const Pieces& of_x, const T* x) {
  __shared__ __align__(16) A smem[kSlice];
  if (threadIdx.x < kWarp) {
    int count = 0;
#pragma unroll
    for (int v = 0; v < kVector; ++v) origin[v] = A(0);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      A values[kVector];
      widen_all(values, of_x[k]);
      count += place.there(k);
#pragma unroll
      for (int v = 0; v < kVector; ++v) origin[v] += values[v];
    }
#pragma unroll
    for (int lane = kWarp / 2; lane >= kLanes; lane /= 2) {
      count += __shfl_xor_sync(kAllLanes, count, lane);
#pragma unroll
      for (int v = 0; v < kVector; ++v) origin[v] += __shfl_xor_sync(kAllLanes, origin[v], lane);
    }
    const A share = A(1) / A(max(count, 1));
#pragma unroll
    for (int v = 0; v < kVector; ++v) origin[v] *= share;
    if (count == 0 && place.column < place.all.columns)
      widen_all(origin, load_wordwise<T, kVector>(x + place.column));  // a row that ends early
    if (threadIdx.x < kLanes) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) smem[threadIdx.x * kVector + v] = origin[v];
    }
  }
  __syncthreads();
  read_all(origin, smem + threadIdx.x % kLanes * kVector);
}

__device__ __forceinline__ void sum_values(const Place& place, const T* x, A* partial) {
  __shared__ A smem[kThreads / kWarp][2][kSlice];
  Wordwise<T, kVector> of_x[kVectors];
  place.fetch(of_x, x, 0);
  const int column = place.first + static_cast<int>(threadIdx.x);
  Wordwise<T, 1> nearby = {};
  if (threadIdx.x < kSlice && column < place.all.columns) nearby = load_wordwise<T, 1>(x + place.channel(threadIdx.x));
  A origin[kVector], sums[2 * kVector] = {};
  find_origin(origin, place, of_x, x);
  const auto add = [&](int v, A value) {
    const A d = value - origin[v];
    sums[v] += d;
    sums[kVector + v] += d * d;
  };
#pragma unroll 1
  for (int k = 0;; k += kVectors) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!place.there(k + i)) break;
      A values[kVector];
      widen_all(values, of_x[i]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) add(v, values[v]);
    }
    if (!place.there(k + kVectors)) break;
    place.fetch(of_x, x, k + kVectors);
  }
  const int tail = place.tail();
  if (tail > 0) {
#pragma unroll
    for (int v = 0; v < kVector; ++v)
      if (v < tail) add(v, widen(x[place.tail_at() + v]));
  }
  A plain, along;
  __shared__ A smem_origin[kSlice];
  if (threadIdx.x < kLanes) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) smem_origin[threadIdx.x * kVector + v] = origin[v];
  }
  sum_columns<kVector, kLanes, kThreads>(sums, plain, along, smem);
  if (threadIdx.x >= kSlice || column >= place.all.columns) return;
  A common[1];
  widen_all(common, nearby);
  const int count = place.all.values(blockIdx.y, column);
  const double delta = double(plain) / double(max(count, 1)),
               far = double(smem_origin[threadIdx.x]) - double(common[0]) + delta;
  const Vec<A, 2> found = {{count > 0 ? A(far) : A(0), A(double(along) - double(plain) * delta)}};
  store(partial + 2 * (static_cast<long long>(blockIdx.y) * place.all.columns + column), found);
}

// What a thread needs of its channels.
struct Known {
  A mean[kVector], scale[kVector], shift[kVector];
};

__device__ __forceinline__ void find_known(Known& known, const Place& place, const Parameter<T>& w,
                                           const Parameter<T>& b, const Parameter<T>& mean, const Parameter<T>& rstd) {
  __shared__ __align__(16) A smem[kCurved ? 3 : 1][kSlice];
  if (threadIdx.x < kSlice && place.first + static_cast<int>(threadIdx.x) < place.all.columns) {
    const int channel = place.channel(threadIdx.x);
    const auto first = mean.fetch(channel);
    if constexpr (kCurved) {
      const auto second = rstd.fetch(channel), third = w.fetch(channel), fourth = b.fetch(channel);
      smem[1][threadIdx.x] = rstd.value(second, A(1)) * w.value(third, A(1)),
      smem[2][threadIdx.x] = b.value(fourth, A(0));
    }
    smem[0][threadIdx.x] = mean.value(first, A(0));
  }
  __syncthreads();
  const int own = threadIdx.x % kLanes * kVector;
  read_all(known.mean, smem[0] + own);
  if constexpr (kCurved) read_all(known.scale, smem[1] + own), read_all(known.shift, smem[2] + own);
}

__device__ __forceinline__ void sum_gradient(const Place& place, const T* grad, const T* x, const T* residual,
                                             const Parameter<T>& w, const Parameter<T>& b, const Parameter<T>& mean,
                                             const Parameter<T>& rstd, A p, A q, A* partial) {
  __shared__ A smem[kThreads / kWarp][2][kSlice];
  Wordwise<T, kVector> of_x[kVectors], of_grad[kVectors], more[kResidual ? kVectors : 1];
  place.fetch(of_x, x, 0);
  place.fetch(of_grad, grad, 0);
  if constexpr (kResidual) place.fetch(more, residual, 0);
  Known known;
  find_known(known, place, w, b, mean, rstd);
  A sums[2 * kVector] = {};
  const auto add = [&](int v, A value, A g, A r) {
    const A d = value - known.mean[v];
    if constexpr (kCurved)
      g = Config::Activation::gradient(
          g, kResidual ? d * known.scale[v] + known.shift[v] + r : d * known.scale[v] + known.shift[v], p, q);
    sums[v] += g;
    sums[kVector + v] += g * d;
  };
#pragma unroll 1
  for (int k = 0;; k += kVectors) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!place.there(k + i)) break;
      A values[kVector], g[kVector], r[kVector] = {};
      widen_all(values, of_x[i]);
      widen_all(g, of_grad[i]);
      if constexpr (kResidual) widen_all(r, more[i]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) add(v, values[v], g[v], r[v]);
    }
    if (!place.there(k + kVectors)) break;
    place.fetch(of_x, x, k + kVectors);
    place.fetch(of_grad, grad, k + kVectors);
    if constexpr (kResidual) place.fetch(more, residual, k + kVectors);
  }
  const int tail = place.tail();
  if (tail > 0) {
    const auto at = place.tail_at();
#pragma unroll
    for (int v = 0; v < kVector; ++v)
      if (v < tail) add(v, widen(x[at + v]), widen(grad[at + v]), kResidual ? widen(residual[at + v]) : A(0));
  }
  A plain, along;
  sum_columns<kVector, kLanes, kThreads>(sums, plain, along, smem);
  const int column = place.first + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kSlice || column >= place.all.columns) return;
  const Vec<A, 2> found = {{plain, along}};
  store(partial + 2 * (static_cast<long long>(blockIdx.y) * place.all.columns + column), found);
}

// Null: what is absent. `wide` has a bit for each of weight, bias, mean and rstd.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  let_next_kernel_begin();  // which reads the same arrays before it waits for this one
  const Folded all = {a.columns, a.channels, a.rows, a.left, a.parts, a.part};
  const Place place(all, all.part);
  if constexpr (kGradient) {
    const Parameter<T> w = {a.weight, (a.wide & 1) != 0}, b = {a.bias, (a.wide & 2) != 0},
                       mean = {a.mean_of, (a.wide & 4) != 0}, rstd = {a.rstd_of, (a.wide & 8) != 0};
    sum_gradient(place, a.grad, a.x, a.residual, w, b, mean, rstd, A(a.p), A(a.q), a.partial);
  } else {
    sum_values(place, a.x, a.partial);
  }
}
