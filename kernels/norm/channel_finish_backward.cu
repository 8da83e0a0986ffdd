// The second half of kernels/norm/channel_finish.cu: from sums of g and g * (x - mean) to the further coefficients of the gradient of x,
//   dx = rstd * (g * weight - average - slope * (x - mean)),  average = average(g * weight),  slope = rstd * average(g * weight * u),
// to dweight and dbias, and, where the statistics were given (`fixed`), to the gradients of mean and variance, with average and slope 0.
//
// Layout:  the first `statistics` warps take a (batch, group of `members` channels) each, the next `channels` warps a channel each, over all
//          parts of all of the batch.
// Bound:   latency. Everything in double, in a fixed order.

#include "dnnarray/norm.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
};
#define DNNARRAY_ENTRY norm_channel_finish_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kThreads = 128;

// Null: what is absent or not asked for.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const Moments* __restrict__ partial, const void* weight, A* coefficients, void* dweight, void* dbias, void* dmean,
                   void* dvariance, long long wide_weight, long long wide_bias, long long wide_mean, long long wide_variance,
                   long long statistics, long long parts, long long channels, long long members, double count, long long fixed) {
  const Parameter<T> w = {weight, wide_weight != 0};
  const long long warp = static_cast<long long>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (warp >= statistics + channels) return;
  const int lane = threadIdx.x % kWarp;
  const long long groups = channels / members, batches = statistics / groups, instances = batches * channels;
  const A* rstd_of = coefficients + 3 * instances;
  double plain = 0, along = 0;
  if (warp < statistics) {
    const long long batch = warp / groups, first = warp % groups * members;
    const double rstd = double(rstd_of[batch * channels + first]);
    if (!fixed)
      for (long long i = lane; i < parts * members; i += kWarp) {
        const long long channel = first + i % members;
        const Moments& sums = partial[(batch * parts + i / members) * channels + channel];
        plain += double(w.at(channel, A(1))) * sums.mean;
        along += double(w.at(channel, A(1))) * sums.square;
      }
    plain = warp_sum(plain) / count;
    along = warp_sum(along) * rstd / count;
    for (long long j = lane; j < members; j += kWarp) {
      const long long at = batch * channels + first + j;
      coefficients[4 * instances + at] = w.at(first + j, A(1));
      coefficients[5 * instances + at] = A(plain);
      coefficients[6 * instances + at] = A(rstd * along);
    }
  } else {
    const long long channel = warp - statistics;
    for (long long i = lane; i < batches * parts; i += kWarp) {
      const long long at = i / parts * channels + channel;
      const Moments& sums = partial[i * channels + channel];
      plain += sums.mean;
      along += sums.square * double(rstd_of[at]);
    }
    plain = warp_sum(plain);
    along = warp_sum(along);
    if (lane != 0) return;
    if (dweight != nullptr) put<T>(dweight, wide_weight != 0, channel, A(along));
    if (dbias != nullptr) put<T>(dbias, wide_bias != 0, channel, A(plain));
    const double scale = double(coefficients[instances + channel]);  // `fixed` goes with one batch of instances
    if (dmean != nullptr) put<T>(dmean, wide_mean != 0, channel, A(-scale * plain));
    if (dvariance != nullptr) put<T>(dvariance, wide_variance != 0, channel, A(-0.5 * scale * double(rstd_of[channel]) * along));
  }
}
