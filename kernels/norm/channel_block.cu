// Batch, group and instance norm of small arrays in one launch: y = act((x - mean) * scale + shift + residual).
//
// Layout:  block (g, b) owns a statistic: channel g of the whole batch, or (kGroup) group g of batch index b, `vectors` vectors in images of
//          `each`, in registers; thread t the vectors t, t + kThreads, ... kLast: channels run fastest; a block owns kVector neighbouring channels of b, a
//          vector of each row, or (kGroup) group g, `each` vectors of each row; kBlocks > 1: a cluster of so many does, each an equal share of the rows.
// Needs:   an image (kLast: the channels, a group) a multiple of kVector elements; at most kThreads kVectors vectors; pointers aligned to kVector
//          elements; fewer than 2^31 elements; kLast: kThreads at least `each`.
// Bound:   latency: all that is read is under way at once. The mean, then the distances from it; sums of threads in the arithmetic type, in a
//          fixed order.

#include "dnnarray/activation.cuh"
#include "dnnarray/core/overlap.cuh"
#include "norm/channel_block.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGroup = false;
  static constexpr bool kLast = false;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 2;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 1;
};
#define DNNARRAY_ENTRY norm_channel_block_default
#endif
#ifndef DNNARRAY_TOGETHER  // channel_block_cluster.cu
#define DNNARRAY_TOGETHER
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads, kBlocks = Config::kBlocks;
using Own = Owned<T, kVector, kVectors, kThreads, Config::kGroup, Config::kLast>;
using Place = BlockPlace<kVector, kBlocks>;
constexpr int kChannels = Own::kChannels, kStatistics = Own::kStatistics;

// Null: what is absent or not asked for. Blocks of a batch index are `span` elements of x and `members` channels apart. Each 64 bytes of arguments are a
// miss of the constant cache, 0.05 us: pairs of small numbers share one, `wide` has a bit for each of weight, bias, running mean and variance, and what
// is read by few comes last.
extern "C" __global__ void DNNARRAY_TOGETHER __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const void* weight, const void* bias, T* __restrict__ y, A* mean_of, A* rstd_of,
                   const T* __restrict__ residual, long long wide, long long vectors_and_each, long long each_divisor, long long pitch_and_span,
                   double share, double eps, long long members, const void* running_mean, const void* running_var, void* next_mean, void* next_var,
                   double count, double momentum, double p64, double q64) {
  __shared__ __align__(16) A smem[kBlocks * kThreads / kWarp][kStatistics][4];
  if constexpr (kBlocks > 1) cluster_arrive();
  begin_ahead();
  const Place place(vectors_and_each, pitch_and_span, blockIdx.y);
  const Own own(threadIdx.x, place.base, place.vectors, Divisor(vectors_and_each, each_divisor), place.pitch, true);
  const int first = place.block * static_cast<int>(members);
  take_after_previous_kernel(x, residual, weight, bias, running_mean, running_var);
  const auto of_x = own.fetch(x), of_residual = own.fetch(residual);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0}, absent = {nullptr, false};
  typename Parameter<T>::Fetched weights[kChannels], biases[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) weights[c] = w.fetch(first + own.place(c)), biases[c] = b.fetch(first + own.place(c));
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
  const int statistic = (static_cast<int>(blockIdx.y * gridDim.x) / kBlocks + place.block) * kStatistics + static_cast<int>(threadIdx.x);
  const bool tells = place.share() == 0 && threadIdx.x < kStatistics;
  if (tells) {
    if (mean_of != nullptr) mean_of[statistic] = mine.mean;
    if (rstd_of != nullptr) rstd_of[statistic] = mine.rstd;
  }
  Affine<A> affine[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) affine[c] = found[own.statistic(c)].affine(w.value(weights[c], A(1)), b.value(biases[c], A(0)));
  const A p = A(p64), q = A(q64);
  own.each([&](int k, int v) {
    const Affine<A>& c = affine[own.channel(k, v)];
    values[k][v] = Config::Activation::forward((values[k][v] - c.mean) * c.scale + c.shift + more[k][v], p, q);
  });
  own.write(y, values);
  if (!tells || (next_mean == nullptr && next_var == nullptr)) return;  // doubles take as long as all the rest
  const Parameter<T> old_mean = {running_mean, (wide & 4) != 0}, old_var = {running_var, (wide & 8) != 0};
  const Statistic<T> known = {absent, absent, absent, old_mean, old_var, nullptr, nullptr, next_mean, next_var, count, share, momentum, eps};
  known.find(mine.sums, double(mine.origin), statistic, true);
}
