// From the parts of kernels/norm/channel_sums.cu to what kernels/norm/channel_apply.cu needs: for each instance, a (batch, channel) or a
// channel, the coefficients mean, scale = rstd * weight, shift = bias - (what rounding took from the mean) * scale, rstd.
//
// Layout:  a warp per statistic (batch, group of `members` channels): its lanes take every 32nd part; for the gradient, further warps take
//          a channel each and sum dweight and dbias over the batch. Coefficients are arrays of `instances` values, one after the other.
// Bound:   latency; a few megabytes at most. Everything in double, in a fixed order.

#include "dnnarray/norm.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
};
#define DNNARRAY_ENTRY norm_channel_finish_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kThreads = 128;

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const Moments* __restrict__ partial, const void* weight, const void* bias, const void* given_mean, const void* given_rstd,
                   const void* variance, const void* running_mean, const void* running_var, A* __restrict__ coefficients, A* mean_of,
                   A* rstd_of_statistic, void* next_mean, void* next_var, long long wide_weight, long long wide_bias, long long wide_mean,
                   long long wide_rstd, long long wide_variance, long long wide_running_mean, long long wide_running_var, long long statistics,
                   long long parts, long long channels, long long members, double count, double momentum, double eps) {
  const Parameter<T> w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0}, fixed = {variance, wide_variance != 0};
  const Parameter<T> saved_mean = {given_mean, wide_mean != 0}, saved_rstd = {given_rstd, wide_rstd != 0};
  const Parameter<T> old_mean = {running_mean, wide_running_mean != 0}, old_var = {running_var, wide_running_var != 0};
  const long long statistic = static_cast<long long>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (statistic >= statistics) return;
  const int lane = threadIdx.x % kWarp;
  const long long groups = channels / members, batch = statistic / groups, first = statistic % groups * members;
  const long long instances = statistics / groups * channels;
  Moments m = {0, 0, 0};
  if (partial != nullptr)
    for (long long i = lane; i < parts * members; i += kWarp)
      m = merge(m, partial[(batch * parts + i / members) * channels + first + i % members]);
  m = warp_merge(m);
  const double found = __shfl_sync(kAllLanes, m.mean, 0), square = __shfl_sync(kAllLanes, m.square, 0);
  const double spread = square / (count > 0 ? count : 1.0);
  const double mean = given_mean != nullptr ? double(saved_mean.at(statistic, A(0))) : found;
  const double used = variance != nullptr ? double(fixed.at(statistic, A(0))) : spread;
  const A rstd = saved_rstd.at(statistic, A(1.0 / sqrt(used + eps)));
  const A near = A(mean);
  if (lane == 0) {
    if (mean_of != nullptr) mean_of[statistic] = near;
    if (rstd_of_statistic != nullptr) rstd_of_statistic[statistic] = rstd;
    const double step = count > 0 ? momentum : 0.0;  // of nothing there is nothing to learn
    if (next_mean != nullptr) {
      const A old = old_mean.at(statistic, A(0));
      put<T>(next_mean, wide_running_mean != 0, statistic, step == 0 ? old : A((1 - step) * double(old) + step * mean));
    }
    if (next_var != nullptr) {
      const A old = old_var.at(statistic, A(0));
      const double unbiased = spread * (count / (count > 1 ? count - 1 : 1.0));
      put<T>(next_var, wide_running_var != 0, statistic, step == 0 ? old : A((1 - step) * double(old) + step * unbiased));
    }
  }
  for (long long j = lane; j < members; j += kWarp) {
    const long long channel = first + j, at = batch * channels + channel;
    const A scale = rstd * w.at(channel, A(1));
    coefficients[at] = near;
    coefficients[instances + at] = scale;
    coefficients[2 * instances + at] = b.at(channel, A(0)) - A(mean - double(near)) * scale;
    coefficients[3 * instances + at] = rstd;
  }
}
