// Batch, group and instance norm in one launch that reads x once: y = act((x - mean) * scale + shift + residual), for
// what fits on chip.
//
// Layout:  a block owns `tile` channels (whole groups) of a batch index, or of the whole batch, in shared memory: dense
//          pieces of neighbouring elements, (outer, channels, inner) or, kLast, (batch, rows, channels). kSide units, a
//          channel or with kLast a vector of channels, are walked at a time, each by kThreads / kSide threads: sums, a
//          warp per statistic, then the result in place.
// Needs:   inner (kLast: the channels of a block) a multiple of kVector; runs of neighbours and their distances
//          multiples of kCopy elements.
// Bound:   memory: x and residual read once, y written once. Sums around a thread's first number in the arithmetic
//          type, between threads in double, in a fixed order.

#include "dnnarray/core/activation.cuh"
#include "norm/channel_slab.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kLast = false;
  static constexpr int kVector = 4;
  static constexpr int kCopy = 4;
  static constexpr int kSide = 4;
  static constexpr int kThreads = 512;
};
struct Arguments {
  const void* weight;
  const void* bias;
  const void* running_mean;
  const void* running_var;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of;
  void* next_mean;
  void* next_var;
  long long wide_weight;
  long long wide_bias;
  long long wide_running_mean;
  long long wide_running_var;
  long long per_batch;
  long long outer;
  long long channels;
  long long inner;
  long long tile;
  long long tiles;
  long long members;
  long long groups;
  double count;
  double share;
  double momentum;
  double eps;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_slab_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kLanes = kThreads / kSide;
constexpr int kOwn = Config::kLast ? kVector : 1;  // channels of a unit
constexpr int kResident = kOwn > 4 || sizeof(A) > 4
                              ? 512
                              : 1024;  // threads of a multiprocessor that registers are shared out to

// Null: what is absent or not asked for. Shared memory holds x, the residual if there is one, and for each channel its
//       sums and coefficients.
extern "C" __global__ void __launch_bounds__(kThreads, kResident / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const bias = a.bias, *const running_mean = a.running_mean,
                    *const running_var = a.running_var;
  A *const mean_of = a.mean_of, *const rstd_of = a.rstd_of;
  void *const next_mean = a.next_mean, *const next_var = a.next_var;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, wide_running_mean = a.wide_running_mean,
                  wide_running_var = a.wide_running_var, per_batch = a.per_batch, outer = a.outer,
                  channels = a.channels, inner = a.inner, tile = a.tile, tiles = a.tiles, members = a.members,
                  groups = a.groups;
  const double count = a.count, share = a.share, momentum = a.momentum, eps = a.eps;
  extern __shared__ __align__(16) char smem[];
  __shared__ Shares smem_warps[kThreads / kWarp * (Config::kLast ? kSide : 1)];
  const Held held(Config::kLast, outer, channels, inner, tile, tiles, per_batch);
  T* smem_x = reinterpret_cast<T*>(smem);
  T* smem_residual = smem_x + held.room;
  Shares* smem_sums = reinterpret_cast<Shares*>(smem_residual + (residual != nullptr ? held.room : 0));
  Affine<A>* smem_affine = reinterpret_cast<Affine<A>*>(smem_sums + tile);
  held.slab.bring<kThreads, Config::kCopy>(smem_x, x);
  if (residual != nullptr) held.slab.bring<kThreads, Config::kCopy>(smem_residual, residual);
  const Parameter<T> w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0}, absent = {nullptr, false};
  fetch_parameters<kThreads>(held, w, b, smem_affine);
  wait_for_copies();
  __syncthreads();

  const Units<Config::kLast, kVector, kSide, kThreads> units(held, static_cast<int>(inner));
  const Parameter<T> old_mean = {running_mean, wide_running_mean != 0}, old_var = {running_var, wide_running_var != 0};
  const Statistic<T> statistic = {absent,    absent,   absent, old_mean, old_var,  mean_of, rstd_of,
                                  next_mean, next_var, count,  share,    momentum, eps};
  find_affine(held, units, smem_x, static_cast<int>(members), static_cast<int>(tile), groups, false, statistic,
              smem_affine, smem_sums, smem_warps);
  __syncthreads();

  const A p = A(a.p), q = A(a.q);
#pragma unroll 1
  for (int unit = units.side; unit < units.count; unit += kSide) {
    Affine<A> own[kOwn];
#pragma unroll
    for (int v = 0; v < kOwn; ++v) own[v] = smem_affine[unit * kOwn + v];
    units.at(unit).each<kVector, kLanes>(units.lane, [&](int at) {
      auto here = load<T, kVector>(smem_x + at);
      Vec<T, kVector> r;
      if (residual != nullptr) r = load<T, kVector>(smem_residual + at);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Affine<A>& c = own[Config::kLast ? v : 0];
        const A z = (widen(here.at[v]) - c.mean) * c.scale + c.shift + (residual != nullptr ? widen(r.at[v]) : A(0));
        here.at[v] = narrow<T>(Config::Activation::forward(z, p, q));
      }
      keep(smem_x + at, here);
    });
  }
  __syncthreads();
  held.slab.write<kThreads, Config::kCopy>(y, smem_x);
}
