// Batch norm of medium arrays in channels-last memory, the second of two launches, from what
// kernels/norm/folded_sums.cu left of each part of the rows: y = act((x - mean) * scale + shift + residual), the
// statistics and the running ones; kGradient: with z the value before the activation, g = act'(grad, z), dresidual = g,
// dx = rstd * weight * (g - average(g) - rstd^2 * average(g * (x - mean)) * (x - mean)), dweight, dbias.
//
// Layout:  block (s, r) takes slice s of kLanes vectors of columns of run r of the rows; a thread has the same kVector
//          columns of each of its rows. The block adds up the parts of its own columns' channels; the first run's
//          writes what belongs to a channel.
// Needs:   as kernels/norm/folded_sums.cu; begins while that one ends.
// Bound:   latency: the first kVectors vectors of each array are under way, or there, when the sums have been written.

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
  const dnnarray::arithmetic_t<Config::Element>* partial;
  Config::Element* out;
  Config::Element* more;
  void* first;
  void* second;
  void* next_mean;
  void* next_var;
  int run;
  double count;
  double share;
  double momentum;
  double eps;
};
#define DNNARRAY_ENTRY norm_folded_apply_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kLanes = Config::kLanes;
constexpr bool kGradient = Config::kGradient, kResidual = Config::kResidual,
               kCurved = !is_same<Config::Activation, Identity>;
using Place = FoldedPlace<T, kVector, kLanes, kThreads>;
constexpr int kSlice = Place::kSlice, kStrands = kThreads / kSlice;  // threads that add up the parts of a column
constexpr int kAtOnce = 8;                                           // of which each asks for so many together
static_assert(kStrands >= 1, "a thread for each column");

// The sums of a channel over all parts, for the first kSlice threads: of each column of the slice. Forward: around the
// channel's first value.
__device__ __forceinline__ Shares add_parts(const Place& place, const A* partial, int terms, int last, int channel) {
  __shared__ Shares smem[kThreads];
  const Folded& all = place.all;
  const int column = static_cast<int>(threadIdx.x) % kSlice, strand = static_cast<int>(threadIdx.x) / kSlice;
  const int values = all.rows - (all.parts - 1) * all.part;
  Shares sums = {0, 0};
#pragma unroll 1
  for (int i = strand; i < terms; i += kAtOnce * kStrands) {  // i: a row of channels of the columns of a part
    Vec<A, 2> some[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      some[j] = {};
      if (i + j * kStrands < terms)
        some[j] = load<A, 2>(partial + 2 * static_cast<long long>((i + j * kStrands) * all.channels + channel));
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const double plain = double(some[j].at[0]), along = double(some[j].at[1]);
      if constexpr (kGradient) {
        sums.add({plain, along});
      } else {
        const int of = i + j * kStrands,
                  there = of < last ? all.part : values - ((of - last) * all.channels + channel >= all.left);
        const double weighted = plain * double(there);
        sums.add({weighted, along + weighted * plain});
      }
    }
  }
  if constexpr (kStrands > 1) {
    smem[threadIdx.x] = sums;
    __syncthreads();
    if (threadIdx.x < kSlice) {
#pragma unroll
      for (int s = 1; s < kStrands; ++s) sums.add(smem[s * kSlice + column]);
    }
  }
  return sums;
}

// What a thread needs of its channels: z = (x - mean) * scale + shift; the gradient is g * scale - average - slope * (x
// - mean).
constexpr int kNumbers = kGradient ? kCurved ? 5 : 4 : 3;
enum { kMean, kScale, kOffset, kSlope, kShift };  // kOffset: shift, or average
struct Known {
  A at[kNumbers][kVector];
};

__device__ __forceinline__ A before(const Known& known, int v, A d, A g, A r, A p, A q) {
  if constexpr (!kCurved) return g;
  const A z = d * known.at[kScale][v] + known.at[kGradient ? kNumbers - 1 : kOffset][v];
  return Config::Activation::gradient(g, kResidual ? z + r : z, p, q);
}

struct Arrays {
  const T *x, *grad, *residual;
  T *out, *more;
  A p, q;
};

// One value: the result, and in g the gradient before the activation.
__device__ __forceinline__ A apply(const Known& known, int v, A value, A& g, A r, const Arrays& arrays) {
  const A d = value - known.at[kMean][v];
  if constexpr (kGradient) {
    g = before(known, v, d, g, r, arrays.p, arrays.q);
    return rounded_product(g, known.at[kScale][v]) - known.at[kOffset][v] -
           known.at[kSlope][v] * d;  // 0 for a single value
  } else {
    const A z = d * known.at[kScale][v] + known.at[kOffset][v];
    return Config::Activation::forward(kResidual ? z + r : z, arrays.p, arrays.q);
  }
}

struct Pieces {
  Wordwise<T, kVector> x[kVectors], grad[kGradient ? kVectors : 1], residual[kResidual ? kVectors : 1];

  __device__ __forceinline__ void fetch(const Place& place, const Arrays& arrays, int k) {
    place.fetch(x, arrays.x, k);
    if constexpr (kGradient) place.fetch(grad, arrays.grad, k);
    if constexpr (kResidual) place.fetch(residual, arrays.residual, k);
  }
};

__device__ __forceinline__ void write_all(const Place& place, const Known& known, Pieces& pieces,
                                          const Arrays& arrays) {
#pragma unroll 1
  for (int k = 0;; k += kVectors) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!place.there(k + i)) break;
      A values[kVector], g[kVector] = {}, r[kVector] = {};
      widen_all(values, pieces.x[i]);
      if constexpr (kGradient) widen_all(g, pieces.grad[i]);
      if constexpr (kResidual) widen_all(r, pieces.residual[i]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) values[v] = apply(known, v, values[v], g[v], r[v], arrays);
      store(arrays.out + place.at(k + i), narrow_all<T, kVector>(values));
      if (kGradient && arrays.more != nullptr) store(arrays.more + place.at(k + i), narrow_all<T, kVector>(g));
    }
    if (!place.there(k + kVectors)) break;
    pieces.fetch(place, arrays, k + kVectors);
  }
  const int tail = place.tail();
  if (tail == 0) return;
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    if (v >= tail) break;
    const auto at = place.tail_at() + v;
    A g = kGradient ? widen(arrays.grad[at]) : A(0);
    arrays.out[at] =
        narrow<T>(apply(known, v, widen(arrays.x[at]), g, kResidual ? widen(arrays.residual[at]) : A(0), arrays));
    if (kGradient && arrays.more != nullptr) arrays.more[at] = narrow<T>(g);
  }
}

// Null: what is absent or not asked for. `wide` has a bit for each of weight, bias, mean and rstd (forward: the running
//       ones); `run` is the rows of a block.
// kGradient: `first` and `second` take dweight and dbias, otherwise mean and rstd.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const T *const x = a.x, *const grad = a.grad, *const residual = a.residual;
  const void *const weight = a.weight, *const bias = a.bias, *const mean_of = a.mean_of, *const rstd_of = a.rstd_of;
  const long long wide = a.wide;
  const A* const partial = a.partial;
  T *const out = a.out, *const more = a.more;
  void *const first = a.first, *const second = a.second, *const next_mean = a.next_mean, *const next_var = a.next_var;
  const double count = a.count, share = a.share, momentum = a.momentum, eps = a.eps;
  __shared__ __align__(16) A smem[kNumbers][kSlice];
  const Folded all = {a.columns, a.channels, a.rows, a.left, a.parts, a.part};
  const Place place(all, a.run);
  const Arrays arrays = {x, grad, residual, out, more, A(a.p), A(a.q)};
  Pieces pieces;
  pieces.fetch(place, arrays, 0);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0}, mean = {mean_of, (wide & 4) != 0},
                     rstd = {rstd_of, (wide & 8) != 0};
  const int column = place.first + static_cast<int>(threadIdx.x), channel = place.channel(threadIdx.x % kSlice);
  const bool owns = threadIdx.x < kSlice && column < all.columns,
             leads = owns && blockIdx.y == 0 && column < all.channels;
  typename Parameter<T>::Fetched fetched[4] = {};  // all under way before any is looked at
  Wordwise<T, 1> nearby = {};
  if (owns) {
    fetched[0] = w.fetch(channel), fetched[1] = b.fetch(channel);
    if constexpr (kGradient) {
      fetched[2] = mean.fetch(channel), fetched[3] = rstd.fetch(channel);
    } else {
      nearby = load_wordwise<T, 1>(x + channel);
    }
  }
  const int fold = all.columns / all.channels;
  const Parameter<T> absent = {nullptr, false};
  const Statistic<T> statistic = {
      absent,   absent, absent, mean,     rstd, static_cast<A*>(first), static_cast<A*>(second), next_mean,
      next_var, count,  share,  momentum, eps};
  const A* sums_of_parts = after_previous_kernel(partial);
  const Shares sums = add_parts(place, sums_of_parts, all.parts * fold, (all.parts - 1) * fold, channel);
  A common[1];  // around which the sums are
  widen_all(common, nearby);
  if (owns) {
    const A weight_of = w.value(fetched[0], A(1)), bias_of = b.value(fetched[1], A(0));
    if constexpr (kGradient) {
      const A known_mean = mean.value(fetched[2], A(0)), known_rstd = rstd.value(fetched[3], A(1));
      const A plain = A(sums.plain), along = A(sums.along), scale = known_rstd * weight_of;
      smem[kMean][threadIdx.x] = known_mean, smem[kScale][threadIdx.x] = scale;
      smem[kOffset][threadIdx.x] = rounded_product(plain, scale) * A(share),
      smem[kSlope][threadIdx.x] = scale * known_rstd * known_rstd * along * A(share);
      if constexpr (kCurved) smem[kNumbers - 1][threadIdx.x] = bias_of;
      if (leads && first != nullptr) put<T>(first, w.wide, channel, along * known_rstd);
      if (leads && second != nullptr) put<T>(second, b.wide, channel, plain);
    } else {
      const Affine<A> found = statistic.find(sums, double(common[0]), channel, false).affine(weight_of, bias_of);
      smem[kMean][threadIdx.x] = found.mean, smem[kScale][threadIdx.x] = found.scale,
      smem[kOffset][threadIdx.x] = found.shift;
    }
  }
  __syncthreads();
  Known known;
#pragma unroll
  for (int n = 0; n < kNumbers; ++n) read_all(known.at[n], smem[n] + threadIdx.x % kLanes * kVector);
  write_all(place, known, pieces, arrays);
  if (!kGradient && leads)
    statistic.find(sums, double(common[0]), channel, true);  // the running ones take as long as all the rest
}
