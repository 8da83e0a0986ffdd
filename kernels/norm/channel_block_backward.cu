// The gradient of kernels/norm/channel_block.cu in one launch: with z the value before the activation, g = act'(grad, z), dresidual = g,
// dx = rstd * (g * weight - average(g * weight) - u * average(g * weight * u)), dweight = sum(g * u), dbias = sum(g), u = (x - mean) * rstd.
// Statistics that were not saved are found from x.
//
// Layout:  block g owns channel g of the whole batch, or (kGroup) group g of each of the up to kRows batch indices, one to each of kRows
//          equal parts of its threads, in registers; thread t of a part the vectors t, t + kLanes, ... of its `vectors`, in images of `each`.
//          kGroup: the sums of vectors meet in shared memory, where a warp adds up those of a channel.
// Needs:   an image a multiple of kVector elements; at most kLanes kVectors vectors; a part of whole warps; pointers aligned to kVector
//          elements; fewer than 2^31 elements.
// Bound:   latency.

#include "dnnarray/activation.cuh"
#include "dnnarray/channel_block.cuh"
#include "dnnarray/overlap.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGroup = false;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 2;
  static constexpr int kRows = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY norm_channel_block_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr bool kGroup = Config::kGroup;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads, kRows = Config::kRows, kLanes = kThreads / kRows;
constexpr int kWarps = kThreads / kWarp, kChannels = kGroup ? kVectors : 1;  // channels that the vectors of a thread may belong to
using Own = Owned<T, kVector, kVectors, kLanes>;

// Sums of g and of g * (x - mean).
struct Sums {
  A plain = A(0), along = A(0);
};

// dweight and dbias of every channel of a group, from the sums of its vectors.
__device__ __forceinline__ void put_channels(const Sums (&mine)[kVectors], A rstd, int first, int members, int each, void* dweight, void* dbias,
                                             bool wide_weight, bool wide_bias) {
  __shared__ A smem[2][kRows][kVectors * kLanes];
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) smem[0][row][k * kLanes + lane] = mine[k].along * rstd, smem[1][row][k * kLanes + lane] = mine[k].plain;
  __syncthreads();
#pragma unroll 1
  for (int channel = threadIdx.x / kWarp; channel < members; channel += kWarps) {
    A along = A(0), plain = A(0);
#pragma unroll 2
    for (int i = channel * each + threadIdx.x % kWarp; i < (channel + 1) * each; i += kWarp) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) along += smem[0][r][i], plain += smem[1][r][i];
    }
    warp_sum_both(along, plain);
    if (threadIdx.x % kWarp != 0) continue;
    if (dweight != nullptr) put<T>(dweight, wide_weight, first + channel, along);
    if (dbias != nullptr) put<T>(dbias, wide_bias, first + channel, plain);
  }
}

// Null: what is absent or not asked for. `span` elements of x belong to a channel of a batch index, or to a group; `wide` has a bit for each of weight,
// bias, mean and rstd.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const void* weight, const void* bias, const void* given_mean,
                   const void* given_rstd, T* __restrict__ dx, void* dweight, void* dbias, const T* __restrict__ residual, T* __restrict__ dresidual,
                   long long wide, long long vectors_and_each, long long each_divisor, long long pitch_and_span, double share, long long rows, double eps,
                   long long members, double p64, double q64) {
  __shared__ __align__(16) A smem[kWarps][4], smem_sums[2 * kWarps];
  begin_ahead();
  const int vectors = static_cast<int>(vectors_and_each >> 32), each = static_cast<int>(vectors_and_each);
  const int pitch = static_cast<int>(pitch_and_span >> 32), span = static_cast<int>(pitch_and_span);
  const int row = threadIdx.x / kLanes, group = static_cast<int>(blockIdx.x), first = group * static_cast<int>(members);
  const Own own(threadIdx.x % kLanes, (row * static_cast<int>(gridDim.x) + group) * span, vectors, Divisor(each, each_divisor), pitch, row < rows);
  take_after_previous_kernel(x, grad, residual, weight, bias, given_mean, given_rstd);
  const auto of_x = own.fetch(x), of_grad = own.fetch(grad), of_residual = own.fetch(residual);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0};
  const Parameter<T> old_mean = {given_mean, (wide & 4) != 0}, old_rstd = {given_rstd, (wide & 8) != 0};
  const auto saved_mean = old_mean.fetch(group), saved_rstd = old_rstd.fetch(group);  // saved statistics go with channels
  typename Parameter<T>::Fetched fetched[2][kChannels];
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    const int channel = first + (kGroup && own.there[k] ? own.image[k] : 0);
    fetched[0][k] = w.fetch(channel), fetched[1][k] = b.fetch(channel);
  }
  A d[kVectors][kVector], g[kVectors][kVector], more[kVectors][kVector], weights[kChannels];
  own.widen_pieces(d, of_x);
  Brief<T> found = {};
  if (given_mean == nullptr || given_rstd == nullptr)
    found = find_brief<kThreads, kRows>(own, d, vectors, A(share), A(eps), smem);
  if (given_mean != nullptr) found.mean = old_mean.value(saved_mean, A(0)), found.rest = A(0);
  if (given_rstd != nullptr) found.rstd = old_rstd.value(saved_rstd, A(0));
  own.widen_pieces(g, of_grad);
  own.widen_pieces(more, of_residual);
  const A p = A(p64), q = A(q64);
  Affine<A> affine[kChannels];
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    weights[k] = w.value(fetched[0][k], A(1));
    affine[k] = found.affine(weights[k], b.value(fetched[1][k], A(0)));
  }
  Sums of_vector[kVectors];
  own.each([&](int k, int v) {
    const Affine<A>& c = affine[kGroup ? k : 0];
    d[k][v] -= c.mean;
    g[k][v] = Config::Activation::gradient(g[k][v], d[k][v] * c.scale + c.shift + more[k][v], p, q);
    of_vector[k].plain += g[k][v];
    of_vector[k].along += g[k][v] * d[k][v];
  });
  Sums all;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    all.plain += kGroup ? rounded_product(of_vector[k].plain, weights[k % kChannels]) : of_vector[k].plain;
    all.along += kGroup ? rounded_product(of_vector[k].along, weights[k % kChannels]) : of_vector[k].along;
  }
  sum_parts<kThreads, kRows>(all.plain, all.along, smem_sums);
  const A rstd = found.rstd, factor = kGroup ? A(1) : weights[0];
  const A average = rounded_product(all.plain, factor) * A(share), slope = rstd * rstd * (all.along * factor) * A(share);
  if (dresidual != nullptr) own.write(dresidual, g);
  own.each([&](int k, int v) {
    const A along = rounded_product(g[k][v], weights[kGroup ? k : 0]) - average;  // 0 where a statistic has a single value
    d[k][v] = rstd * (along - slope * d[k][v]);
  });
  own.write(dx, d);
  if constexpr (kGroup) {
    put_channels(of_vector, rstd, first, static_cast<int>(members), each, dweight, dbias, w.wide, b.wide);
  } else if (threadIdx.x == 0) {
    if (dweight != nullptr) put<T>(dweight, w.wide, group, all.along * rstd);
    if (dbias != nullptr) put<T>(dbias, b.wide, group, all.plain);
  }
}
