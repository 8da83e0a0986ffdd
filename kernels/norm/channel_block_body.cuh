// The body of kernels/norm/channel_block.cu and of channel_block_cluster.cu, where a cluster of kBlocks blocks shares
// out the rows.
#pragma once

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/overlap.cuh"
#include "norm/channel_block.cuh"

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kBlocks = Config::kBlocks;
using Own = Owned<T, kVector, kVectors, kThreads, Config::kGroup, Config::kLast>;
using Place = BlockPlace<kVector, kBlocks>;
constexpr int kChannels = Own::kChannels, kStatistics = Own::kStatistics;

// Null: what is absent or not asked for.
__device__ __forceinline__ void normalize_block(const T* x, T* y, const T* residual, const Arguments& a) {
  const void *weight = a.weight, *bias = a.bias, *running_mean = a.running_mean, *running_var = a.running_var;
  A *mean_of = a.mean_of, *rstd_of = a.rstd_of;
  const int vectors = a.vectors, each = a.each, pitch = a.pitch, span = a.span, members = a.members;
  const long long each_divisor = a.each_divisor, wide = a.wide;
  const double share = a.share, eps = a.eps, count = a.count, momentum = a.momentum;
  void *next_mean = a.next_mean, *next_var = a.next_var;
  __shared__ __align__(16) A smem[kBlocks * kThreads / kWarp][kStatistics][4];
  if constexpr (kBlocks > 1) cluster_arrive();
  begin_ahead();
  const Place place(vectors, pitch, span, blockIdx.y);
  const Own own(threadIdx.x, place.base, place.vectors, Divisor(each, each_divisor), place.pitch, true);
  const int first = place.block * members;
  take_after_previous_kernel(x, residual, weight, bias, running_mean, running_var);
  const auto of_x = own.fetch(x), of_residual = own.fetch(residual);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0}, absent = {nullptr, false};
  typename Parameter<T>::Fetched weights[kChannels], biases[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    weights[c] = w.fetch(first + own.place(c)), biases[c] = b.fetch(first + own.place(c));
  A values[kVectors][kVector], more[kVectors][kVector];
  own.widen_pieces(values, of_x);
  Brief<T> found[kStatistics];
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  find_brief<kThreads, 1, kBlocks>(found, own, values, place.vectors, A(share), A(eps), smem);
  own.widen_pieces(more, of_residual);
  Brief<T> mine = found[0];  // the statistic that this thread tells others of, if it is one of the first kStatistics
#pragma unroll
  for (int s = 1; s < kStatistics; ++s)
    if (threadIdx.x == s) mine = found[s];
  const int statistic =
      (static_cast<int>(blockIdx.y * gridDim.x) / kBlocks + place.block) * kStatistics + static_cast<int>(threadIdx.x);
  const bool tells = place.share() == 0 && threadIdx.x < kStatistics;
  if (tells) {
    if (mean_of != nullptr) mean_of[statistic] = mine.mean;
    if (rstd_of != nullptr) rstd_of[statistic] = mine.rstd;
  }
  Affine<A> affine[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    affine[c] = found[own.statistic(c)].affine(w.value(weights[c], A(1)), b.value(biases[c], A(0)));
  const A p = A(a.p), q = A(a.q);
  own.each([&](int k, int v) {
    const Affine<A>& c = affine[own.channel(k, v)];
    values[k][v] = Config::Activation::forward((values[k][v] - c.mean) * c.scale + c.shift + more[k][v], p, q);
  });
  own.write(y, values);
  if (!tells || (next_mean == nullptr && next_var == nullptr)) return;  // doubles take as long as all the rest
  const Parameter<T> old_mean = {running_mean, (wide & 4) != 0}, old_var = {running_var, (wide & 8) != 0};
  const Statistic<T> known = {absent,    absent,   absent, old_mean, old_var,  nullptr, nullptr,
                              next_mean, next_var, count,  share,    momentum, eps};
  known.find(mine.sums, double(mine.origin), statistic, true);
}
