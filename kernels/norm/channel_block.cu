// Batch, group and instance norm of small arrays, channels first, in one launch: y = act((x - mean) * scale + shift + residual).
//
// Layout:  block (g, b) owns a statistic: channel g of the whole batch, or (kGroup) group g of batch index b, `vectors` vectors in images of
//          `each`, in registers; thread t the vectors t, t + kThreads, ...
// Needs:   an image a multiple of kVector elements; at most kThreads kVectors vectors; pointers aligned to kVector elements; fewer than 2^31
//          elements.
// Bound:   latency: all that is read is under way at once. The mean, then the distances from it; sums of threads in the arithmetic type, in a
//          fixed order.

#include "dnnarray/activation.cuh"
#include "dnnarray/channel_block.cuh"
#include "dnnarray/overlap.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGroup = false;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY norm_channel_block_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads;
constexpr int kChannels = Config::kGroup ? kVectors : 1;  // that the vectors of a thread may belong to

// Null: what is absent or not asked for. `span` elements of x belong to a channel of a batch index, or to a group. Each 64 bytes of arguments are a
// miss of the constant cache, 0.05 us: pairs of small numbers share one, `wide` has a bit for each of weight, bias, running mean and variance, and what
// is read by few comes last.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const void* weight, const void* bias, T* __restrict__ y, A* mean_of, A* rstd_of,
                   const T* __restrict__ residual, long long wide, long long vectors_and_each, long long each_divisor, long long pitch_and_span,
                   double share, double eps, long long members, const void* running_mean, const void* running_var, void* next_mean, void* next_var,
                   double count, double momentum, double p64, double q64) {
  __shared__ __align__(16) A smem[kThreads / kWarp][4];
  begin_ahead();
  const int statistic = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x), first = static_cast<int>(blockIdx.x) * static_cast<int>(members);
  const int vectors = static_cast<int>(vectors_and_each >> 32), pitch = static_cast<int>(pitch_and_span >> 32), span = static_cast<int>(pitch_and_span);
  const Owned<T, kVector, kVectors, kThreads> own(threadIdx.x, statistic * span, vectors, Divisor(vectors_and_each, each_divisor), pitch, true);
  take_after_previous_kernel(x, residual, weight, bias, running_mean, running_var);
  const auto of_x = own.fetch(x), of_residual = own.fetch(residual);
  const Parameter<T> w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0}, absent = {nullptr, false};
  typename Parameter<T>::Fetched weights[kChannels], biases[kChannels];
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    const int channel = first + (Config::kGroup && own.there[k] ? own.image[k] : 0);
    weights[k] = w.fetch(channel), biases[k] = b.fetch(channel);
  }
  A values[kVectors][kVector], more[kVectors][kVector];
  own.widen_pieces(values, of_x);
  const auto found = find_brief<kThreads, 1>(own, values, vectors, A(share), A(eps), smem);
  own.widen_pieces(more, of_residual);
  if (threadIdx.x == 0) {
    if (mean_of != nullptr) mean_of[statistic] = found.mean;
    if (rstd_of != nullptr) rstd_of[statistic] = found.rstd;
  }
  Affine<A> affine[kChannels];
#pragma unroll
  for (int k = 0; k < kChannels; ++k) affine[k] = found.affine(w.value(weights[k], A(1)), b.value(biases[k], A(0)));
  const A p = A(p64), q = A(q64);
  own.each([&](int k, int v) {
    const Affine<A>& c = affine[Config::kGroup ? k : 0];
    values[k][v] = Config::Activation::forward((values[k][v] - c.mean) * c.scale + c.shift + more[k][v], p, q);
  });
  own.write(y, values);
  if (threadIdx.x != 0 || (next_mean == nullptr && next_var == nullptr)) return;  // doubles take as long as all the rest
  const Parameter<T> old_mean = {running_mean, (wide & 4) != 0}, old_var = {running_var, (wide & 8) != 0};
  const Statistic<T> known = {absent, absent, absent, old_mean, old_var, nullptr, nullptr, next_mean, next_var, count, share, momentum, eps};
  known.find(found.sums, double(found.origin), statistic, true);
}
