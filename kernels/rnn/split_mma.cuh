// Matrix products of half-type weights with float32 numbers on tensor cores. A number is split into two parts that add
// up to it within 2^-18 (bfloat16) or 2^-22 of it; each part is multiplied exactly and summed in float32.
//
// A tile is 16 rows of weights by 16 columns, times 16 x 8 numbers. Columns are numbered so that lane l holds columns 4
// (l % 4) to + 3: of rows l / 4 and l / 4 + 8 of the weights, and of column l / 4 of the numbers.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/convert.cuh"
#include "dnnarray/ptx/mma.cuh"

namespace dnnarray {

template <bool kFirst, typename First, typename Second>
struct Either {
  using type = First;
};
template <typename First, typename Second>
struct Either<false, First, Second> {
  using type = Second;
};

// What a lane holds of a tile of weights: pairs of columns 0, 1 of both rows, then of columns 2, 3.
template <typename T>
struct alignas(16) WeightFragment {
  unsigned at[4];

  __device__ __forceinline__ void set(int pair, T low, T high) {
    at[pair] = low.bits | static_cast<unsigned>(high.bits) << 16;
  }
};
template <>
struct alignas(16) WeightFragment<float> {
  float at[8];

  __device__ __forceinline__ void set(int pair, float low, float high) { at[2 * pair] = low, at[2 * pair + 1] = high; }
};

__device__ __forceinline__ unsigned pack_pair(float low, float high, float16_t) { return cvt_f16x2_f32(low, high); }
__device__ __forceinline__ unsigned pack_pair(float low, float high, bfloat16_t) { return cvt_bf16x2_f32(low, high); }
template <typename T>
__device__ __forceinline__ float low_of_pair(unsigned pair) {
  return widen(T{static_cast<unsigned short>(pair)});
}
template <typename T>
__device__ __forceinline__ float high_of_pair(unsigned pair) {
  return widen(T{static_cast<unsigned short>(pair >> 16)});
}

__device__ __forceinline__ void mma(float (&c)[4], const WeightFragment<float16_t>& a, unsigned b0, unsigned b1,
                                    float16_t) {
  mma_m16n8k16_f16(c, a.at, b0, b1);
}
__device__ __forceinline__ void mma(float (&c)[4], const WeightFragment<bfloat16_t>& a, unsigned b0, unsigned b1,
                                    bfloat16_t) {
  mma_m16n8k16_bf16(c, a.at, b0, b1);
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  const unsigned a[4] = {__float_as_uint(a0), __float_as_uint(a1), __float_as_uint(a2), __float_as_uint(a3)};
  mma_m16n8k8_tf32(c, a, __float_as_uint(b0), __float_as_uint(b1));
}

// The products come in stages, each with another part, so that products which add to different sums can stand between
// those which add to the same one and have to wait for each other.

// Numbers as two parts in the type of the weights: right for numbers within its range.
template <typename T>
struct Halves {
  unsigned high[2], low[2];

  __device__ __forceinline__ explicit Halves(float4 v) {
    high[0] = pack_pair(v.x, v.y, T());
    high[1] = pack_pair(v.z, v.w, T());
    low[0] = pack_pair(v.x - low_of_pair<T>(high[0]), v.y - high_of_pair<T>(high[0]), T());
    low[1] = pack_pair(v.z - low_of_pair<T>(high[1]), v.w - high_of_pair<T>(high[1]), T());
  }
  struct Weights {
    WeightFragment<T> a;
    __device__ __forceinline__ explicit Weights(const WeightFragment<T>& fragment) : a(fragment) {}
  };
  static constexpr int kStages = 2;
  __device__ __forceinline__ void add_product(int stage, float (&c)[4], const Weights& w) const {
    if (stage == 0) {
      mma(c, w.a, low[0], low[1], T());
    } else {
      mma(c, w.a, high[0], high[1], T());
    }
  }
};

// Numbers of any magnitude as two parts of 11 bits; the weights, widened, are exact.
template <typename T>
struct WideParts {
  float high[4], low[4];

  __device__ __forceinline__ explicit WideParts(float4 v) {
    const float at[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = __uint_as_float(__float_as_uint(at[i]) & 0xffffe000u);
      low[i] = at[i] - high[i];
    }
  }
  struct Weights {
    float a[8];
    __device__ __forceinline__ explicit Weights(const WeightFragment<T>& fragment) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[2 * i] = low_of_pair<T>(fragment.at[i]);
        a[2 * i + 1] = high_of_pair<T>(fragment.at[i]);
      }
    }
  };
  static constexpr int kStages = 4;
  __device__ __forceinline__ void add_product(int stage, float (&c)[4], const Weights& w) const {
    const int k = stage % 2 * 4;
    const float (&part)[4] = stage < 2 ? low : high;
    mma_tf32(c, w.a[k], w.a[k + 2], w.a[k + 1], w.a[k + 3], part[k / 2], part[k / 2 + 1]);
  }
};

// The parts of a float32 number in TensorFloat-32: the first cut off, what is left rounded. They add up to it within
// 2^-22 of it.
__device__ __forceinline__ float first_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
__device__ __forceinline__ float second_part(float x, float first) {
  return __uint_as_float((__float_as_uint(x - first) + 0x1000u) & 0xffffe000u);
}

// Numbers and weights of float32 as two parts each. The product of the second parts is left out, as it is below the
// roundings of the others.
struct FloatParts {
  float high[4], low[4];

  __device__ __forceinline__ explicit FloatParts(float4 v) {
    const float at[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = first_part(at[i]);
      low[i] = second_part(at[i], high[i]);
    }
  }
  struct Weights {
    float high[8], low[8];
    __device__ __forceinline__ explicit Weights(const WeightFragment<float>& fragment) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        high[i] = first_part(fragment.at[i]);
        low[i] = second_part(fragment.at[i], high[i]);
      }
    }
  };
  static constexpr int kStages = 6;
  __device__ __forceinline__ void add_product(int stage, float (&c)[4], const Weights& w) const {
    const int k = stage % 2 * 4;
    const float (&weight)[8] = stage < 2 ? w.low : w.high;
    const float (&part)[4] = stage < 2 || stage >= 4 ? high : low;
    mma_tf32(c, weight[k], weight[k + 2], weight[k + 1], weight[k + 3], part[k / 2], part[k / 2 + 1]);
  }
};

}  // namespace dnnarray
