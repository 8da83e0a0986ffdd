// What the linear cross entropy makes of a row of scores: its loss, and the gradients of its scores.
#pragma once

#include "loss/scores.cuh"

namespace dnnarray {

// l = (1 - e) w[t] (lse - z[t]) + e / C sum_c w[c] (lse - z[c]); `picked` is the score of the label, `own` its weight.
template <bool kSmoothing, typename A>
__device__ __forceinline__ A row_loss(const Scores<A>& found, A log_sum, const Label& label, A own, A picked,
                                      A smoothing, long long classes) {
  if (!label.kept) return A(0);
  if (!label.valid) return quiet_nan(A(0));
  const A loss = own * (log_sum - (picked - finite_base(found.peak)));
  return kSmoothing ? loss * (A(1) - smoothing) + share_loss(found, log_sum) * (smoothing / classes) : loss;
}

// Of a row's gradients: dz = both exp(z - lse) - scale w, less `hard` at the label.
template <typename A>
struct Slopes {
  A both, scale, hard, lse;
  long long label;
  bool kept;

  template <bool kSmoothing, typename T>
  __device__ __forceinline__ A of(A score, const T* weight, int at, bool there) const {
    A d = kept ? both * quick_exp(score - lse) : A(0);
    if (kSmoothing && there) d -= weight ? scale * widen(weight[at]) : scale;
    return at == label ? d - hard : d;
  }
};

// `given` is the gradient of the row's loss, `own` the weight of its label, `shares` the sum of all class weights; null
// where that is their number.
template <bool kSmoothing, typename A>
__device__ __forceinline__ Slopes<A> slopes(const Label& label, A own, A given, const A* shares, A lse,
                                            long long classes, A smoothing) {
  if (!label.kept) return {A(0), A(0), A(0), lse, -1, false};
  const A hard = own * given;
  if constexpr (!kSmoothing) return {hard, A(0), hard, lse, label.index, true};
  const A scale = given * (smoothing / classes), rest = hard * (A(1) - smoothing);
  return {rest + scale * (shares ? *shares : A(classes)), scale, rest, lse, label.index, true};
}

}  // namespace dnnarray
