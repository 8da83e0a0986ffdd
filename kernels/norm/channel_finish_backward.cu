// The second half of kernels/norm/channel_finish.cu: from sums of g and g * (x - mean) to the further coefficients of
// the gradient of x,
//   dx = rstd * (g * weight - average - slope * (x - mean)),  average = average(g * weight),  slope = rstd * average(g
//   * weight * u),
// to dweight and dbias, and, where the statistics were given (`fixed`), to the gradients of mean and variance, with
// average and slope 0.
//
// Where the sums are not around the mean but around the first value of the statistic (`x` given), they are brought
// there.
//
// Layout:  the first `blocks` blocks: kLanes threads for each of `statistics`, a (batch, group of `members` channels),
//          whose parts lie one after the other; the others: kOver threads for each of `channels`, over all parts of all
//          of the batch.
// Bound:   latency. Everything in double, in a fixed order.

#include "norm/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kLanes = 32;
  static constexpr int kOver = 32;
};
struct Arguments {
  const void* weight;
  const void* given_mean;
  const void* given_rstd;
  void* dweight;
  void* dbias;
  void* dmean;
  void* dvariance;
  long long wide_weight;
  long long wide_bias;
  long long wide_mean;
  long long wide_rstd;
  long long wide_variance;
  long long fixed;
  long long last;
  long long statistics;
  long long parts;
  long long channels;
  long long members;
  long long batch_pitch;
  long long channel_pitch;
  long long blocks;
  double share;
};
#define DNNARRAY_ENTRY norm_channel_finish_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kThreads = 128;

// Null: what is absent or not asked for. With `given_mean` and `given_rstd`, which go with channels as statistics and
//       no activation, nobody
// has written the coefficients yet that kernels/norm/channel_apply.cu needs then.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Shares* __restrict__ partial, A* __restrict__ coefficients,
                   A* __restrict__ slopes, const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const given_mean = a.given_mean, *const given_rstd = a.given_rstd;
  void *const dweight = a.dweight, *const dbias = a.dbias, *const dmean = a.dmean, *const dvariance = a.dvariance;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, wide_mean = a.wide_mean,
                  wide_rstd = a.wide_rstd, wide_variance = a.wide_variance, fixed = a.fixed, last = a.last,
                  statistics = a.statistics, parts = a.parts, channels = a.channels, members = a.members,
                  batch_pitch = a.batch_pitch, channel_pitch = a.channel_pitch, blocks = a.blocks;
  const double share = a.share;
  __shared__ Shares smem[kThreads / kWarp];
  let_next_kernel_begin();
  partial = after_previous_kernel(partial), coefficients = after_previous_kernel(coefficients);
  const Parameter<T> w = {weight, wide_weight != 0};
  // Long division takes longer than all the rest.
  const unsigned of_group = static_cast<unsigned>(members), groups = static_cast<unsigned>(channels) / of_group,
                 each = static_cast<unsigned>(parts);
  const long long batches = static_cast<unsigned>(statistics) / groups;
  const Table<A> affine(coefficients, batches * channels, last != 0), slope(slopes, batches * channels, last != 0);
  const Parameter<T> mean = {given_mean, wide_mean != 0}, known = {given_rstd, wide_rstd != 0};
  const auto rstd_of = [&](long long instance) {
    return known.data != nullptr ? known.at(instance, A(0)) : affine.at(3, instance);
  };
  // How far the mean of an instance is from what its sums are around.
  const auto distance = [&](long long batch, long long channel) {
    if (x == nullptr) return 0.0;
    return double(affine.at(0, batch * channels + channel)) -
           double(widen(x[batch * batch_pitch + static_cast<unsigned>(channel) / of_group * members * channel_pitch]));
  };
  Shares sums = {0, 0};
  if (blockIdx.x < blocks) {
    constexpr int kLanes = Config::kLanes;
    const int lane = threadIdx.x % kLanes;
    const long long task = min(static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes,
                               statistics - 1);  // the last, for company
    const long long batch = static_cast<unsigned>(task) / groups,
                    first = static_cast<unsigned>(task) % groups * members;
    const double rstd = double(rstd_of(batch * channels + first));
    const Shares* mine = partial + task * members * parts;
    if (!fixed)
#pragma unroll 4
      for (long long i = lane; i < parts * members; i += kLanes) {
        const double of = double(w.at(first + (of_group == 1 ? 0 : static_cast<unsigned>(i) / each), A(1)));
        sums.add({of * mine[i].plain, of * mine[i].along});
      }
    sums = lane_shares<kLanes, kThreads>(sums, smem);
    if (!fixed) sums.along -= distance(batch, first) * sums.plain;
    for (long long j = lane; j < members; j += kLanes) {
      const long long instance = batch * channels + first + j;
      if (known.data != nullptr) affine.at(0, instance) = mean.at(instance, A(0)), affine.at(3, instance) = A(rstd);
      slope.at(0, instance) = w.at(first + j, A(1));
      slope.at(1, instance) = A(sums.plain * share);
      slope.at(2, instance) = A(rstd * rstd * sums.along * share);
    }
  } else {
    constexpr int kLanes = Config::kOver;
    const int lane = threadIdx.x % kLanes;
    const long long task = (blockIdx.x - blocks) * (kThreads / kLanes) + threadIdx.x / kLanes,
                    channel = min(task, channels - 1);
    const auto brought = [&](const Shares& own, long long batch) {  // to the mean, in units of its standard deviation
      return Shares{own.plain,
                    (own.along - distance(batch, channel) * own.plain) * double(rstd_of(batch * channels + channel))};
    };
    if (2 * batches >= kLanes) {
      for (long long batch = lane; batch < batches; batch += kLanes) {
        Shares of_batch = {0, 0};
#pragma unroll 4
        for (unsigned part = 0; part < each; ++part) of_batch.add(partial[(batch * channels + channel) * parts + part]);
        sums.add(brought(of_batch, batch));
      }
    } else {
#pragma unroll 4
      for (long long i = lane; i < batches * parts; i += kLanes) {
        const long long batch = batches == 1 ? 0 : static_cast<unsigned>(i) / each;
        sums.add(brought(partial[(batch * channels + channel) * parts + i - batch * parts], batch));
      }
    }
    sums = lane_shares<kLanes, kThreads>(sums, smem);
    if (lane != 0) return;
    if (dweight != nullptr) put<T>(dweight, wide_weight != 0, channel, A(sums.along));
    if (dbias != nullptr) put<T>(dbias, wide_bias != 0, channel, A(sums.plain));
    if (!fixed) return;
    const double scale = double(affine.at(1, channel)),
                 rstd = double(affine.at(3, channel));  // `fixed` goes with one batch of instances
    if (dmean != nullptr) put<T>(dmean, wide_mean != 0, channel, A(-scale * sums.plain));
    if (dvariance != nullptr) put<T>(dvariance, wide_variance != 0, channel, A(-0.5 * scale * rstd * sums.along));
  }
}
