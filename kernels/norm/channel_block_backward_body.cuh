// The body of kernels/norm/channel_block_backward.cu and of channel_block_backward_cluster.cu, where a cluster of
// kBlocks blocks shares out the rows.
#pragma once

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/overlap.cuh"
#include "norm/channel_block.cuh"

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr bool kGroup = Config::kGroup, kLast = Config::kLast;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kRows = Config::kRows, kLanes = kThreads / kRows;
constexpr bool kApart = Config::kApart;
constexpr int kBlocks = Config::kBlocks, kJoint = kApart ? 1 : kBlocks;  // kJoint: that share a statistic
using Place = BlockPlace<kVector, kBlocks, kJoint>;
using Own = Owned<T, kVector, kVectors, kLanes, kGroup, kLast>;
constexpr int kWarps = kThreads / kWarp, kChannels = Own::kChannels, kStatistics = Own::kStatistics;
constexpr int kSums = kLast ? kVector : kVectors;  // of a thread: of its channels, or of its vectors

// Sums of g and of g * (x - mean).
struct Sums {
  A plain = A(0), along = A(0);
};

// The sums of all batch indices, each of which every thread of its part has, for the first threads of the block, or of
// the cluster.
__device__ __forceinline__ void add_up_rows(A (&sums)[2 * kStatistics]) {
  __shared__ A smem[kRows][2 * kStatistics];
  __shared__ __align__(16) A smem_blocks[kBlocks][(kStatistics + 1) / 2][4];
  if (threadIdx.x % kLanes == 0) {
#pragma unroll
    for (int i = 0; i < 2 * kStatistics; ++i) smem[threadIdx.x / kLanes][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2 * kStatistics; ++i) {
    sums[i] = smem[0][i];
#pragma unroll
    for (int other = 1; other < kRows; ++other) sums[i] += smem[other][i];
  }
  if constexpr (kBlocks > 1) {
    tell_cluster<kBlocks, 1>(sums, smem_blocks);
#pragma unroll
    for (int i = 0; i < 2 * kStatistics; ++i) {
      sums[i] = smem_blocks[0][i / 4][i % 4];
#pragma unroll
      for (int other = 1; other < kBlocks; ++other) sums[i] += smem_blocks[other][i / 4][i % 4];
    }
  }
}

// dweight and dbias of every channel of a group, from the sums of its vectors; kLast: from those of the channels of
// each thread.
__device__ __forceinline__ void put_channels(const Sums (&mine)[kSums], A rstd, int first, int members, int each,
                                             void* dweight, void* dbias, bool wide_weight, bool wide_bias) {
  __shared__ A smem[2][kRows][kSums * kLanes];
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
#pragma unroll
  for (int k = 0; k < kSums; ++k)
    smem[0][row][k * kLanes + lane] = mine[k].along * rstd, smem[1][row][k * kLanes + lane] = mine[k].plain;
  __syncthreads();
#pragma unroll 1
  for (int channel = threadIdx.x / kWarp; channel < members; channel += kWarps) {
    const int begin = kLast ? channel % kVector * kLanes : channel * each, step = kLast ? each : 1;
    const int last = kLast ? begin + kLanes : begin + each;
    A along = A(0), plain = A(0);
#pragma unroll 2
    for (int i = begin + (kLast ? channel / kVector : 0) + threadIdx.x % kWarp * step; i < last; i += kWarp * step) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) along += smem[0][r][i], plain += smem[1][r][i];
    }
    warp_sum_both(along, plain);
    if (threadIdx.x % kWarp != 0) continue;
    if (dweight != nullptr) put<T>(dweight, wide_weight, first + channel, along);
    if (dbias != nullptr) put<T>(dbias, wide_bias, first + channel, plain);
  }
}

// Null: what is absent or not asked for.
__device__ __forceinline__ void differentiate_block(const T* grad, const T* x, T* dx, const T* residual, T* dresidual,
                                                    const Arguments& a) {
  const void *weight = a.weight, *bias = a.bias, *given_mean = a.given_mean, *given_rstd = a.given_rstd;
  void *dweight = a.dweight, *dbias = a.dbias;
  const int vectors = a.vectors, each = a.each, pitch = a.pitch, span = a.span, members = a.members;
  const long long each_divisor = a.each_divisor, wide = a.wide, rows = a.rows;
  const double share = a.share, eps = a.eps;
  __shared__ __align__(16) A smem[kJoint * kWarps][kStatistics][4],
      smem_sums[kJoint * kWarps][(kStatistics + 1) / 2][4];
  if constexpr (kBlocks > 1) cluster_arrive();
  begin_ahead();
  const int row = (kApart ? Place::share() * kRows : 0) + threadIdx.x / kLanes;
  const Place place(vectors, pitch, span, row);
  const int group = place.block, first = group * members;
  const Own own(threadIdx.x % kLanes, place.base, place.vectors, Divisor(each, each_divisor), place.pitch, row < rows);
  take_after_previous_kernel(x, grad, residual, weight, bias, given_mean, given_rstd);
  const auto of_x = own.fetch(x), of_grad = own.fetch(grad), of_residual = own.fetch(residual);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0};
  const Parameter<T> old_mean = {given_mean, (wide & 4) != 0}, old_rstd = {given_rstd, (wide & 8) != 0};
  // Saved statistics stand batch index by batch index; threads behind the last one read those of the last one.
  const int statistic =
      (min(row, static_cast<int>(rows) - 1) * static_cast<int>(gridDim.x / kBlocks) + group) * kStatistics;
  typename Parameter<T>::Fetched fetched[2][kChannels], saved[2][kStatistics];
#pragma unroll
  for (int s = 0; s < kStatistics; ++s)
    saved[0][s] = old_mean.fetch(statistic + s), saved[1][s] = old_rstd.fetch(statistic + s);
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    fetched[0][c] = w.fetch(first + own.place(c)), fetched[1][c] = b.fetch(first + own.place(c));
  A d[kVectors][kVector], g[kVectors][kVector], more[kVectors][kVector], weights[kChannels];
  own.widen_pieces(d, of_x);
  Brief<T> found[kStatistics] = {};
  if constexpr (kBlocks > 1) cluster_wait();  // every block is there
  if (given_mean == nullptr || given_rstd == nullptr)
    find_brief<kThreads, kRows, kJoint>(found, own, d, place.vectors, A(share), A(eps), smem);
#pragma unroll
  for (int s = 0; s < kStatistics; ++s) {
    if (given_mean != nullptr) found[s].mean = old_mean.value(saved[0][s], A(0)), found[s].rest = A(0);
    if (given_rstd != nullptr) found[s].rstd = old_rstd.value(saved[1][s], A(0));
  }
  own.widen_pieces(g, of_grad);
  own.widen_pieces(more, of_residual);
  const A p = A(a.p), q = A(a.q);
  Affine<A> affine[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    weights[c] = w.value(fetched[0][c], A(1));
    affine[c] = found[own.statistic(c)].affine(weights[c], b.value(fetched[1][c], A(0)));
  }
  Sums of[kSums];
  own.each([&](int k, int v) {
    const Affine<A>& c = affine[own.channel(k, v)];
    Sums& sums = of[kLast ? v : k];
    d[k][v] -= c.mean;
    g[k][v] = Config::Activation::gradient(g[k][v], d[k][v] * c.scale + c.shift + more[k][v], p, q);
    sums.plain += g[k][v];
    sums.along += g[k][v] * d[k][v];
  });
  A all[2 * kStatistics] = {};  // sums of g, then along x
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int s = own.statistic(i);
    all[s] += kGroup ? rounded_product(of[i].plain, weights[i % kChannels]) : of[i].plain;
    all[kStatistics + s] += kGroup ? rounded_product(of[i].along, weights[i % kChannels]) : of[i].along;
  }
  sum_parts<kThreads, kRows, kJoint, kStatistics>(all, smem_sums);
  A average[kStatistics], slope[kStatistics];
#pragma unroll
  for (int s = 0; s < kStatistics; ++s) {
    const A rstd = found[s].rstd, factor = kGroup ? A(1) : weights[s];
    average[s] = rounded_product(all[s], factor) * A(share),
    slope[s] = rstd * rstd * (all[kStatistics + s] * factor) * A(share);
  }
  if (dresidual != nullptr) own.write(dresidual, g);
  own.each([&](int k, int v) {
    const int s = own.statistic(v);
    const A along =
        rounded_product(g[k][v], weights[own.channel(k, v)]) - average[s];  // 0 where a statistic has a single value
    d[k][v] = found[s].rstd * (along - slope[s] * d[k][v]);
  });
  own.write(dx, d);
  if constexpr (kGroup) {
    put_channels(of, row < rows ? found[0].rstd : A(0), first, members, each, dweight, dbias, w.wide, b.wide);
  } else {
#pragma unroll
    for (int s = 0; s < kStatistics; ++s) all[kStatistics + s] *= row < rows ? found[s].rstd : A(0);
    if constexpr (kRows > 1 || kApart) add_up_rows(all);
#pragma unroll
    for (int s = 0; s < kStatistics; ++s) {
      if (place.share() != 0 || threadIdx.x != s) continue;
      if (dweight != nullptr) put<T>(dweight, w.wide, first + s, all[kStatistics + s]);
      if (dbias != nullptr) put<T>(dbias, b.wide, first + s, all[s]);
    }
  }
}
