// The gradient of kernels/norm/channel_slab.cu in one launch that reads grad and x once, for what fits on chip: with z
// the value before the activation, g = act'(grad, z), dresidual = g, dx = rstd * (g * weight - average(g * weight) - u
// * average(g * weight * u)), dweight = sum(g * u), dbias = sum(g), u = (x - mean) * rstd. Statistics that were not
// saved are found from x.
//
// Layout:  as in channel_slab.cu, with x, grad and, under an activation, the residual in shared memory. Where
//          statistics belong to a batch index, each block leaves its share of dweight and dbias, (batch, channels), for
//          kernels/norm/fold.cu.
// Needs:   as channel_slab.cu.
// Bound:   memory: each input read once, each output written once.

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
  const void* given_mean;
  const void* given_rstd;
  const void* variance;
  void* dweight;
  void* dbias;
  void* dmean;
  void* dvariance;
  long long wide_weight;
  long long wide_bias;
  long long wide_mean;
  long long wide_rstd;
  long long wide_variance;
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
  double eps;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_slab_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kLanes = kThreads / kSide;
constexpr int kOwn = Config::kLast ? kVector : 1;  // channels of a unit
// Threads of a multiprocessor that registers are shared out to.
constexpr bool kCurved = !is_same<Config::Activation, Identity>;
constexpr int kResident = sizeof(A) > 4 ? 256 : kOwn > 1 || kCurved ? 512 : 1024;

struct Arrays {
  T *x, *grad, *residual;
  A p, q;
};

// The distance from the mean, and the gradient before the activation, of element v of a vector of each array.
struct Pieces {
  Vec<T, kVector> x, g, r;

  __device__ __forceinline__ Pieces(const Arrays& arrays, int at)
      : x(load<T, kVector>(arrays.x + at)), g(load<T, kVector>(arrays.grad + at)) {
    if (arrays.residual != nullptr) r = load<T, kVector>(arrays.residual + at);
  }
  __device__ __forceinline__ A distance(int v, const Affine<A>& c) const { return widen(x.at[v]) - c.mean; }
  __device__ __forceinline__ A before(int v, const Affine<A>& c, const Arrays& arrays) const {
    const A z = distance(v, c) * c.scale + c.shift + (arrays.residual != nullptr ? widen(r.at[v]) : A(0));
    return Config::Activation::gradient(widen(g.at[v]), z, arrays.p, arrays.q);
  }
};

// The sums of g and g * (x - mean) of a thread.
struct Gradient {
  Arrays arrays;
  Affine<A> affine[kOwn];
  A plain[kOwn], along[kOwn];

  __device__ __forceinline__ Gradient(const Arrays& from, const Affine<A>* of_unit) : arrays(from) {
#pragma unroll
    for (int v = 0; v < kOwn; ++v) affine[v] = of_unit[v], plain[v] = A(0), along[v] = A(0);
  }
  __device__ __forceinline__ void operator()(int at) {
    const Pieces pieces(arrays, at);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const int own = Config::kLast ? v : 0;
      const A g = pieces.before(v, affine[own], arrays);
      plain[own] += g;
      along[own] += g * pieces.distance(v, affine[own]);
    }
  }
};

// Null: what is absent or not asked for. `per_batch` says that dweight and dbias are shares of a batch index, in the
//       arithmetic dtype.
extern "C" __global__ void __launch_bounds__(kThreads, kResident / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ residual,
                   T* __restrict__ dx, T* __restrict__ dresidual, const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const bias = a.bias, *const given_mean = a.given_mean,
                    *const given_rstd = a.given_rstd, *const variance = a.variance;
  void *const dweight = a.dweight, *const dbias = a.dbias, *const dmean = a.dmean, *const dvariance = a.dvariance;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, wide_mean = a.wide_mean,
                  wide_rstd = a.wide_rstd, wide_variance = a.wide_variance, per_batch = a.per_batch, outer = a.outer,
                  channels = a.channels, inner = a.inner, tile = a.tile, tiles = a.tiles, members = a.members,
                  groups = a.groups;
  const double count = a.count, share = a.share, eps = a.eps;
  extern __shared__ __align__(16) char smem[];
  __shared__ Shares smem_warps[kThreads / kWarp * (Config::kLast ? kSide : 1)];
  let_next_kernel_begin();
  const Held held(Config::kLast, outer, channels, inner, tile, tiles, per_batch);
  T* smem_x = reinterpret_cast<T*>(smem);
  const Arrays arrays = {smem_x, smem_x + held.room, residual != nullptr ? smem_x + 2 * held.room : nullptr, A(a.p),
                         A(a.q)};
  Shares* smem_sums = reinterpret_cast<Shares*>(smem_x + (residual != nullptr ? 3 : 2) * held.room);
  Affine<A>* smem_affine = reinterpret_cast<Affine<A>*>(smem_sums + tile);
  Slope<A>* smem_slope = reinterpret_cast<Slope<A>*>(smem_affine + tile);
  held.slab.bring<kThreads, Config::kCopy>(arrays.x, x);
  held.slab.bring<kThreads, Config::kCopy>(arrays.grad, grad);
  if (residual != nullptr) held.slab.bring<kThreads, Config::kCopy>(arrays.residual, residual);
  const Parameter<T> w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0}, absent = {nullptr, false};
  fetch_parameters<kThreads>(held, w, b, smem_affine);
#pragma unroll 1
  for (int j = threadIdx.x; j < held.mine; j += kThreads) smem_slope[j].weight = smem_affine[j].scale;
  wait_for_copies();
  __syncthreads();

  const Units<Config::kLast, kVector, kSide, kThreads> units(held, static_cast<int>(inner));
  const Parameter<T> mean = {given_mean, wide_mean != 0}, rstd = {given_rstd, wide_rstd != 0},
                     fixed = {variance, wide_variance != 0};
  const Statistic<T> statistic = {mean,    rstd,    fixed, absent, absent, nullptr, nullptr,
                                  nullptr, nullptr, count, share,  0.0,    eps};
  const bool known = given_mean != nullptr && (given_rstd != nullptr || variance != nullptr);
  const int of_group = static_cast<int>(members);
  find_affine(held, units, smem_x, of_group, static_cast<int>(tile), groups, known, statistic, smem_affine, smem_sums,
              smem_warps);
  __syncthreads();
  units.template sum<2>(
      smem_sums, smem_warps, [&](int unit) { return Gradient(arrays, smem_affine + unit * kOwn); },
      [](const Gradient& own, int, int v, int) { return Shares{double(own.plain[v]), double(own.along[v])}; });

  each_group<kThreads>(held.mine / of_group, of_group, [&](int group, int lane, bool large) {
    const int first = group * of_group;
    const double scale = double(smem_affine[first].rstd);
    Shares all = over_members(smem_sums + first, of_group, lane, large,
                              [&](int j) { return double(smem_slope[first + j].weight); });
    if (variance != nullptr) all = {0, 0};  // statistics that do not depend on x
    const Slope<A> slope = {A(0), A(all.plain * share), A(scale * scale * all.along * share), A(0)};
#pragma unroll 1
    for (int j = first + lane; j < first + of_group; j += large ? kWarp : 1) {
      const long long channel = held.first + j, at = held.batch * channels + channel;
      smem_slope[j] = {smem_slope[j].weight, slope.average, slope.slope, A(0)};
      const double plain = smem_sums[j].plain, along = smem_sums[j].along * scale,
                   factor = double(smem_affine[j].scale);
      if (dweight != nullptr) put<T>(dweight, per_batch || wide_weight, at, A(along));
      if (dbias != nullptr) put<T>(dbias, per_batch || wide_bias, at, A(plain));
      if (dmean != nullptr) put<T>(dmean, wide_mean != 0, at, A(-factor * plain));
      if (dvariance != nullptr) put<T>(dvariance, wide_variance != 0, at, A(-0.5 * factor * scale * along));
    }
  });
  __syncthreads();

#pragma unroll 1
  for (int unit = units.side; unit < units.count; unit += kSide) {
    Affine<A> affine[kOwn];
    Slope<A> slope[kOwn];
#pragma unroll
    for (int v = 0; v < kOwn; ++v) affine[v] = smem_affine[unit * kOwn + v], slope[v] = smem_slope[unit * kOwn + v];
    units.at(unit).each<kVector, kLanes, 2>(units.lane, [&](int at) {
      Pieces pieces(arrays, at);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const int own = Config::kLast ? v : 0;
        const A g = pieces.before(v, affine[own], arrays), d = pieces.distance(v, affine[own]);
        const A along =
            rounded_product(g, slope[own].weight) - slope[own].average;  // 0 where a statistic has a single value
        const A part =
            variance != nullptr ? A(0) : slope[own].slope * d;  // given statistics: whatever x and the mean are
        pieces.x.at[v] = narrow<T>(affine[own].rstd * (along - part));
        pieces.g.at[v] = narrow<T>(g);
      }
      keep(arrays.x + at, pieces.x);
      if (dresidual != nullptr) keep(arrays.grad + at, pieces.g);
    });
  }
  __syncthreads();
  held.slab.write<kThreads, Config::kCopy>(dx, arrays.x);
  if (dresidual != nullptr) held.slab.write<kThreads, Config::kCopy>(dresidual, arrays.grad);
}
