// Per channel over a part of the batch and of space: the sums of x and x^2 around the first value of the statistic; or,
// for the gradient, of g and g * (x - mean), where g is grad before the activation of z = (x - mean) * scale + shift +
// residual; or (kBoth), where statistics are not known yet and there is no activation, both in one pass, with the first
// value in the place of the mean. With kMore g itself is a result, the gradient of the residual, so that the last pass
// need not find it again.
//
// Layout:  channels first (outer, channels, inner): a block owns a channel of `outer_step` outer indices and
//          `inner_step` inner ones; its threads walk them in vectors. Channels last (batch, rows, channels): a block
//          owns kSide vectors of channels, thread t the vector t % kSide of every kThreads / kSide-th row of each
//          `inner_parts`-th stretch of kBatch of these: all blocks read near each other, the end of the array last,
//          which is worth 2% of the gradient and nothing forward. The results of an instance, a channel or a (batch,
//          channel), lie one after the other, part by part.
// Needs:   inner (channels last: channels) a multiple of kVector; pointers aligned to kVector elements.
// Bound:   memory: x (and grad, and residual with an activation) read once, kBatch vectors in flight. Threads sum in
//          the arithmetic type, from their first number on; sums of threads meet in double, in a fixed order.

#include "dnnarray/core/activation.cuh"
#include "norm/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGradient = false;
  static constexpr bool kBoth = false;
  static constexpr bool kResidual = false;
  static constexpr bool kMore = false;
  static constexpr bool kLast = false;
  static constexpr int kVector = 4;
  static constexpr int kSide = 1;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long outer;
  long long channels;
  long long inner;
  long long outer_step;
  long long inner_step;
  long long inner_parts;
  long long members;
  long long mean_step;
  long long per_batch;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;
constexpr int kOwn = Config::kLast ? kVector : 1;  // channels of a thread
constexpr bool kGradient = Config::kGradient, kMoments = !kGradient || Config::kBoth;
constexpr int kBatch = kGradient && kOwn > 4 ? 2 : 4;  // as many as registers hold

// Activations with long formulas are given registers, the others occupancy.
constexpr bool kCurved = kGradient && !is_same<Config::Activation, Identity>;

struct Arrays {
  const T *x, *grad, *residual;
  T* more;
  A p, q;
};

// What a thread keeps of one channel.
struct Channel {
  Shifted<A> moments;
  A mean, scale, shift, plain, along;

  // Leaves the gradient before the activation in g.
  __device__ __forceinline__ void add(A x, A& g, A residual, A p, A q) {
    if constexpr (kMoments) moments.add(x);
    if constexpr (kGradient) {
      const A d = x - (Config::kBoth ? moments.shift : mean);
      if constexpr (!Config::kBoth) g = Config::Activation::gradient(g, d * scale + shift + residual, p, q);
      plain += g;
      along += g * d;
    }
  }
  __device__ __forceinline__ Shares gradient_shares(double common) const {
    const double distance = Config::kBoth ? double(moments.shift) - common : 0;
    return {double(plain), double(along) + distance * double(plain)};
  }
};

// The channels of a thread from `instance` on, with their first values.
__device__ __forceinline__ void begin(Channel (&own)[kOwn], const A* coefficients, long long mean_step,
                                      long long instances, long long instance, const A (&first)[kOwn]) {
  if constexpr (kMoments) {
#pragma unroll
    for (int v = 0; v < kOwn; ++v) own[v] = {Shifted<A>(first[v]), A(0), A(1), A(0), A(0), A(0)};
  } else if constexpr (!kCurved) {  // the mean is all that is needed
    A mean[kOwn];
    if constexpr (Config::kLast) {
      read_all(mean, coefficients + instance);
    } else {
      mean[0] = coefficients[instance * mean_step];
    }
#pragma unroll
    for (int v = 0; v < kOwn; ++v) own[v] = {Shifted<A>(), mean[v], A(1), A(0), A(0), A(0)};
  } else if constexpr (Config::kLast) {
    A mean[kOwn], scale[kOwn], shift[kOwn];
    read_all(mean, coefficients + instance);
    read_all(scale, coefficients + instances + instance);
    read_all(shift, coefficients + 2 * instances + instance);
#pragma unroll
    for (int v = 0; v < kOwn; ++v) own[v] = {Shifted<A>(), mean[v], scale[v], shift[v], A(0), A(0)};
  } else {
    const auto known = reinterpret_cast<const Affine<A>*>(coefficients)[instance];
    own[0] = {Shifted<A>(), known.mean, known.scale, known.shift, A(0), A(0)};
  }
}

// Up to kBatch vectors: all loads, then all sums.
struct Batch {
  Wordwise<T, kVector> x[kBatch], g[kBatch], r[kBatch];
  long long place[kBatch];
  bool here[kBatch];

  __device__ __forceinline__ void fetch(int k, const Arrays& arrays, long long at, bool wanted) {
    here[k] = wanted, place[k] = at;
    if (!wanted) return;
    x[k] = load_wordwise<T, kVector>(arrays.x + at);
    if constexpr (kGradient) {
      g[k] = load_wordwise<T, kVector>(arrays.grad + at);
      if constexpr (Config::kResidual) r[k] = load_wordwise<T, kVector>(arrays.residual + at);
    }
  }
  __device__ __forceinline__ void add(Channel (&channels)[kOwn], const Arrays& arrays) const {
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (here[k]) {
        A of_x[kVector], of_g[kVector] = {}, of_r[kVector] = {};
        widen_all(of_x, x[k]);
        if constexpr (kGradient) widen_all(of_g, g[k]);
        if constexpr (Config::kResidual) widen_all(of_r, r[k]);
#pragma unroll
        for (int v = 0; v < kVector; ++v)
          channels[Config::kLast ? v : 0].add(of_x[v], of_g[v], of_r[v], arrays.p, arrays.q);
        if constexpr (Config::kMore) store(arrays.more + place[k], narrow_all<T, kVector>(of_g));
      }
  }
};

// The sums over the block of the kSide * kOwn channels of its threads, all of them between two barriers: of(v) gives
// those of channel v of this thread, put(i, sums) takes those of channel i of the block.
template <typename Of, typename Put>
__device__ __forceinline__ void over_block(Shares* smem, Of of, Put put) {
  constexpr int kChannels = kSide * kOwn;
  if constexpr (kChannels == 1) {
    const Shares all = block_shares<1, kThreads>(of(0), smem);
    if (threadIdx.x == 0) put(0, all);
    return;
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int v = 0; v < kOwn; ++v) {
    const Shares own = warp_shares<kWarp, kSide>(of(v));
    if (lane < kSide) smem[(warp * kOwn + v) * kSide + lane] = own;
    __syncwarp();  // one channel after the other, which takes fewer registers
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kChannels; i += kThreads) {
    Shares all = smem[i];
#pragma unroll
    for (int other = 1; other < kThreads / kWarp; ++other) all.add(smem[other * kChannels + i]);
    put(i % kSide * kOwn + i / kSide, all);
  }
  __syncthreads();
}

// The channels of a thread, of which a block's first is `first`, into `slot` of the parts of their instances, the first
// of which is `batch`.
__device__ __forceinline__ void write(const Channel (&own)[kOwn], bool mine, const A (&common)[kOwn], long long count,
                                      Shares* partial, Shares* gradients, long long batch, long long first,
                                      long long channels, long long parts, long long slot, Shares* smem) {
  const Shares none = {0, 0};
  const auto into = [&](Shares* to) {
    return [=](int i, const Shares& all) {
      if (first + i < channels) to[(batch + first + i) * parts + slot] = all;
    };
  };
  if constexpr (kMoments)
    over_block(smem, [&](int v) { return mine ? around(own[v].moments, common[v], count) : none; }, into(partial));
  if constexpr (kGradient)
    over_block(
        smem, [&](int v) { return mine && count > 0 ? own[v].gradient_shares(common[v]) : none; }, into(gradients));
}

// What the statistics of neighbouring channels are summed around: the first value of the first channel of each group of
// `members`.
__device__ __forceinline__ void first_values(A (&to)[kOwn], const T* row, long long channel, long long members) {
  if (members == 1) {
    widen_all(to, load<T, kOwn>(row + channel));
    return;
  }
  const unsigned group = static_cast<unsigned>(members);
  long long origin = static_cast<unsigned>(channel) / group * group;
#pragma unroll
  for (int v = 0; v < kOwn; ++v) {
    if (channel + v == origin + members) origin += members;
    to[v] = widen(row[origin]);
  }
}

// The vectors of a thread among the rows of its stretches, `step` rows apart: every stretch but the last of all is
// whole.
__device__ __forceinline__ int vectors_of(long long row, long long rows, long long step) {
  if (row >= rows) return 0;
  const unsigned before =
      static_cast<unsigned>(rows - 1 - row) / static_cast<unsigned>(step);  // stretches before that of the last row
  const long long left = rows - row - before * step;
  return static_cast<int>(before * kBatch + min((left + kSteps - 1) / kSteps, static_cast<long long>(kBatch)));
}

// Blocks of a multiprocessor that registers leave room for without a spill; 0 leaves it to the compiler.
constexpr int kResident = kCurved ? 2 : kOwn <= 4 ? 0 : kThreads == 128 && __CUDA_ARCH__ < 1000 ? 5 : 4;

// `partial` takes the sums of x, `gradients` those of the gradient. Null: grad, residual, more and coefficients where
// there are none. `per_batch` says that instances are (outer, channel), not channel. Without an activation
// `coefficients` may be the means alone, `mean_step` numbers apart.
extern "C" __global__ void __launch_bounds__(kThreads, kResident)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grad, const T* __restrict__ residual,
                   const A* __restrict__ coefficients, T* __restrict__ more, Shares* __restrict__ partial,
                   Shares* __restrict__ gradients, const __grid_constant__ Arguments a) {
  const long long outer = a.outer, channels = a.channels, inner = a.inner, outer_step = a.outer_step,
                  inner_step = a.inner_step, inner_parts = a.inner_parts, members = a.members, mean_step = a.mean_step,
                  per_batch = a.per_batch;
  __shared__ Shares smem[kThreads / kWarp * kSide * kOwn];
  let_next_kernel_begin();
  if constexpr (kGradient) coefficients = after_previous_kernel(coefficients);
  const Arrays arrays = {x, grad, residual, more, A(a.p), A(a.q)};
  const unsigned tiles = static_cast<unsigned>(Config::kLast ? (channels / kVector + kSide - 1) / kSide : channels);
  const unsigned along = static_cast<unsigned>(inner_parts),
                 part = blockIdx.x / tiles;  // long division takes longer than a small block
  const long long tile = blockIdx.x % tiles, first_outer = part / along * outer_step,
                  first_inner = part % along * inner_step;
  const long long end_outer = min(first_outer + outer_step, outer), end_inner = min(first_inner + inner_step, inner);
  const long long instances = per_batch ? outer * channels : channels;
  const long long batch = per_batch ? first_outer * channels : 0, parts = per_batch ? inner_parts : gridDim.x / tiles;
  const long long slot = per_batch ? part % along : part;
  Channel own[kOwn];
  Batch batched;
  if constexpr (Config::kLast) {
    constexpr int kStretch = kBatch * kSteps;
    const long long channel = (tile * kSide + threadIdx.x % kSide) * kVector,
                    row = slot * kStretch + threadIdx.x / kSide;
    const bool mine = channel < channels;
    const int count = vectors_of(row, inner, parts * kStretch);
    const long long pitch = kSteps * channels;
    long long at = (first_outer * inner + row) * channels + channel;
    int left = mine ? count : 0;
    const auto fetch = [&] {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) batched.fetch(k, arrays, at + k * pitch, k < left);
    };
    fetch();
    A common[kOwn] = {}, values[kVector] = {}, first[kOwn];
    if (kMoments && mine)
      first_values(common, x + first_outer * inner * channels * per_batch, channel,
                   members);  // under way with the others
    if (kMoments && left > 0) widen_all(values, batched.x[0]);
#pragma unroll
    for (int v = 0; v < kOwn; ++v) first[v] = values[v];
    if (mine) begin(own, coefficients, mean_step, instances, batch + channel, first);
    while (left > 0) {
      batched.add(own, arrays);
      left -= kBatch, at += parts * kBatch * pitch;
      fetch();
    }
    write(own, mine, common, count, partial, gradients, batch, tile * kSide * kVector, channels, parts, slot, smem);
  } else {
    const int vectors = static_cast<int>((end_inner - first_inner) / kVector), over = kThreads / vectors,
              rest = kThreads % vectors;
    long long n = first_outer + threadIdx.x / vectors, count = 0;
    int i = threadIdx.x % vectors;
    const long long base = tile * inner + first_inner, pitch = channels * inner;
    const A first[kOwn] = {kMoments && n < end_outer ? widen(x[base + n * pitch + i * kVector]) : A(0)};
    begin(own, coefficients, mean_step, instances, batch + tile, first);
    const long long group = static_cast<unsigned>(tile) / static_cast<unsigned>(members);
    A common[kOwn] = {};
    if (kMoments) common[0] = widen(x[per_batch * first_outer * pitch + group * members * inner]);
    while (n < end_outer) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        batched.fetch(k, arrays, base + n * pitch + i * kVector, n < end_outer);
        count += n < end_outer ? kVector : 0;
        n += over;
        i += rest;
        if (i >= vectors) i -= vectors, ++n;
      }
      batched.add(own, arrays);
    }
    write(own, true, common, count, partial, gradients, batch, tile, channels, parts, slot, smem);
  }
}
