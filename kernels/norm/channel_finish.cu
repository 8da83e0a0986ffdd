// From the parts of kernels/norm/channel_sums.cu to what kernels/norm/channel_apply.cu needs: for each instance, a
// (batch, channel) or a channel, mean, scale = rstd * weight, shift = bias - (what rounding took from the mean) *
// scale, rstd.
//
// Layout:  kLanes threads per statistic (batch, group of `members` channels), whose parts lie one after the other.
// Bound:   latency; a few megabytes at most. Everything in double, in a fixed order.

#include "norm/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kLanes = 32;
};
struct Arguments {
  const void* weight;
  const void* bias;
  const void* given_mean;
  const void* given_rstd;
  const void* variance;
  const void* running_mean;
  const void* running_var;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_statistic;
  void* next_mean;
  void* next_var;
  long long wide_weight;
  long long wide_bias;
  long long wide_mean;
  long long wide_rstd;
  long long wide_variance;
  long long wide_running_mean;
  long long wide_running_var;
  long long last;
  long long statistics;
  long long parts;
  long long channels;
  long long members;
  long long batch_pitch;
  long long channel_pitch;
  double count;
  double share;
  double momentum;
  double eps;
};
#define DNNARRAY_ENTRY norm_channel_finish_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kThreads = 128, kLanes = Config::kLanes;

// x may be null where no parts were summed, or, as `partial`, where there are none. The first value of a statistic is
// that many elements from x: its batch times `batch_pitch` plus its channel times `channel_pitch`.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Shares* __restrict__ partial, A* __restrict__ coefficients,
                   const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const bias = a.bias, *const given_mean = a.given_mean,
                    *const given_rstd = a.given_rstd, *const variance = a.variance,
                    *const running_mean = a.running_mean, *const running_var = a.running_var;
  A *const mean_of = a.mean_of, *const rstd_of_statistic = a.rstd_of_statistic;
  void *const next_mean = a.next_mean, *const next_var = a.next_var;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, wide_mean = a.wide_mean,
                  wide_rstd = a.wide_rstd, wide_variance = a.wide_variance, wide_running_mean = a.wide_running_mean,
                  wide_running_var = a.wide_running_var, last = a.last, statistics = a.statistics, parts = a.parts,
                  channels = a.channels, members = a.members, batch_pitch = a.batch_pitch,
                  channel_pitch = a.channel_pitch;
  const double count = a.count, share = a.share, momentum = a.momentum, eps = a.eps;
  __shared__ Shares smem[kThreads / kWarp];
  let_next_kernel_begin();
  const Parameter<T> w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0};
  const Statistic<T> known = {{given_mean, wide_mean != 0},
                              {given_rstd, wide_rstd != 0},
                              {variance, wide_variance != 0},
                              {running_mean, wide_running_mean != 0},
                              {running_var, wide_running_var != 0},
                              mean_of,
                              rstd_of_statistic,
                              next_mean,
                              next_var,
                              count,
                              share,
                              momentum,
                              eps};
  const long long own = static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const long long statistic = min(own, statistics - 1);  // the last, for company
  const int lane = threadIdx.x % kLanes;
  const unsigned groups = static_cast<unsigned>(channels) /
                          static_cast<unsigned>(max(members, 1ll));  // long division takes longer than all the rest
  const long long batch = static_cast<unsigned>(statistic) / groups,
                  first = static_cast<unsigned>(statistic) % groups * members;
  const A first_weight = lane < members ? w.at(first + lane, A(1)) : A(1),
          first_bias = lane < members ? b.at(first + lane, A(0)) : A(0);
  Shares sums = {0, 0};
  double origin = 0;
  partial = after_previous_kernel(partial);
  if (partial != nullptr) {
    origin = double(widen(x[batch * batch_pitch + first * channel_pitch]));
    const Shares* mine = partial + statistic * members * parts;
#pragma unroll 4
    for (long long i = lane; i < parts * members; i += kLanes) sums.add(mine[i]);
  }
  sums = lane_shares<kLanes, kThreads>(sums, smem);
  const auto found = known.find(sums, origin, statistic, lane == 0);
  const Table<A> table(coefficients, statistics * members, last != 0);
  for (long long j = lane; j < members; j += kLanes) {
    const bool early = j < kLanes;  // fetched before the sums were there
    const Affine<A> of =
        found.affine(early ? first_weight : w.at(first + j, A(1)), early ? first_bias : b.at(first + j, A(0)));
    const long long instance = batch * channels + first + j;
    table.at(0, instance) = of.mean, table.at(1, instance) = of.scale, table.at(2, instance) = of.shift,
                table.at(3, instance) = of.rstd;
  }
}
