// Whole channels held in shared memory: how they come in, are walked, and go out again.
#pragma once

#include "dnnarray/ptx/cp_async.cuh"
#include "norm/channels.cuh"

namespace dnnarray {

// Copies from device to shared memory that no register waits for; an ordinary load and store where the machine or the
// width has none.
template <int kBytes>
__device__ __forceinline__ void copy_behind(void* shared, const void* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kBytes == 16) return cp_async_cg(shared, from);
  if constexpr (kBytes >= 4 && kBytes < 16) return cp_async_ca<kBytes>(shared, from);
#endif
  struct alignas(kBytes) Bytes {
    char at[kBytes];
  };
  *static_cast<Bytes*>(shared) = *static_cast<const Bytes*>(from);
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  cp_async_wait_all();
#endif
}

// A vector to shared memory; `store` is made for device memory.
template <typename T, int N>
__device__ __forceinline__ void keep(T* shared, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(shared) = v;
}

// Some channels of an array: `pieces` of `run` neighbouring elements, `pitch` apart in memory and one after the other
// in shared memory.
struct Slab {
  long long base, pitch;
  int pieces, run;

  // What each thread moves, kCopy elements at a time: f(place in shared memory, place in the array).
  template <int kThreads, int kCopy, typename F>
  __device__ __forceinline__ void each(F f) const {
    const int vectors = run / kCopy, over = kThreads / vectors, rest = kThreads % vectors;
    int p = threadIdx.x / vectors, i = threadIdx.x % vectors;
#pragma unroll 4
    while (p < pieces) {
      f(p * run + i * kCopy, base + p * pitch + i * kCopy);
      p += over;
      i += rest;
      if (i >= vectors) i -= vectors, ++p;
    }
  }
  template <int kThreads, int kCopy, typename T>
  __device__ __forceinline__ void bring(T* shared, const T* from) const {
    each<kThreads, kCopy>(
        [&](int here, long long there) { copy_behind<kCopy * sizeof(T)>(shared + here, from + there); });
  }
  template <int kThreads, int kCopy, typename T>
  __device__ __forceinline__ void write(T* to, const T* shared) const {
    each<kThreads, kCopy>([&](int here, long long there) { store(to + there, load<T, kCopy>(shared + here)); });
  }
};

// What a block holds: `tile` channels (whole groups) of a batch index, or, without `per_batch`, of the whole batch. An
// array is (outer, channels, inner) in memory or, with `last`, (batch, inner, channels). `room` elements of shared
// memory hold it.
struct Held {
  Slab slab;
  long long batch, first;
  int index, mine, room;  // index: the number of the tile in its batch

  __device__ __forceinline__ Held(bool last, long long outer, long long channels, long long inner, long long tile,
                                  long long tiles, long long per_batch) {
    const unsigned count = static_cast<unsigned>(tiles);  // long division takes longer than the work of a small block
    batch = blockIdx.x / count;
    index = static_cast<int>(blockIdx.x % count);
    first = index * tile;
    mine = static_cast<int>(min(tile, channels - first));
    const int pieces = static_cast<int>(last ? inner : per_batch ? 1 : outer);
    const int of_channel = last ? 1 : static_cast<int>(inner);
    if (last) {
      slab = {batch * inner * channels + first, channels, pieces, mine};
    } else {
      slab = {(batch * channels + first) * inner, channels * inner, pieces, mine * of_channel};
    }
    room = (pieces * static_cast<int>(tile) * of_channel + 7) / 8 * 8;
  }
};

// The share of one thread in a unit, a channel (with kLast kVector neighbouring channels) of a slab, walked by kLanes
// threads in vectors.
struct Unit {
  int start, run, vectors, pieces;

  // The place of the first vector of a lane; -1 if it has none.
  template <int kVector>
  __device__ __forceinline__ int first(int lane) const {
    const int p = lane / vectors;
    return p < pieces ? start + p * run + lane % vectors * kVector : -1;
  }
  // f(place of a vector in shared memory); the return value counts them.
  template <int kVector, int kLanes, int kUnroll = 4, typename F>
  __device__ __forceinline__ int each(int lane, F&& f) const {
    const int over = kLanes / vectors, rest = kLanes % vectors;
    int p = lane / vectors, i = lane % vectors, count = 0;
#pragma unroll kUnroll
    while (p < pieces) {
      f(start + p * run + i * kVector);
      ++count;
      p += over;
      i += rest;
      if (i >= vectors) i -= vectors, ++p;
    }
    return count;
  }
};

// The units of a slab, kSide at a time. Lanes of a unit are neighbours, or, with kLast, units are.
template <bool kLast, int kVector, int kSide, int kThreads>
struct Units {
  static constexpr int kLanes = kThreads / kSide, kOwn = kLast ? kVector : 1;
  int count, lane, side, pitch, run, pieces;

  __device__ __forceinline__ Units(const Held& held, int inner)
      : count(kLast ? held.mine / kVector : held.mine),
        lane(kLast ? threadIdx.x / kSide : threadIdx.x % kLanes),
        side(kLast ? threadIdx.x % kSide : threadIdx.x / kLanes),
        pitch(kLast ? 1 : inner),
        run(held.slab.run),
        pieces(held.slab.pieces) {}

  __device__ __forceinline__ Unit at(int unit) const {
    return {unit * kOwn * pitch, run, kLast ? 1 : pitch / kVector, pieces};
  }

  // Sums of every channel into `sums`: begin(unit, walk) gives what a thread sums with, of(it, v, vectors) its shares
  // of channel v. All threads of the block must come; `smem` holds a value for each warp and, with kLast, side.
  template <int kUnroll = 4, typename Begin, typename Of>
  __device__ __forceinline__ void sum(Shares* sums, Shares* smem, Begin begin, Of of) const {
#pragma unroll 1
    for (int start = 0; start < count; start += kSide) {
      const int unit = start + side;
      const bool mine = unit < count;
      auto own = begin(min(unit, count - 1));
      int vectors = 0;
      if (mine) vectors = at(unit).template each<kVector, kLanes, kUnroll>(lane, own);
#pragma unroll
      for (int v = 0; v < kOwn; ++v) {
        const Shares all = over_lanes(mine ? of(own, unit, v, vectors) : Shares{0, 0}, smem);
        if (mine && lane == 0) sums[unit * kOwn + v] = all;
      }
    }
    __syncthreads();
  }

 private:
  // Lane 0 gets the sum over the lanes of its unit.
  __device__ __forceinline__ static Shares over_lanes(Shares s, Shares* smem) {
    if constexpr (kLast) {
      return block_shares<kSide, kThreads>(s, smem);
    } else if constexpr (kLanes <= kWarp) {
      return warp_shares<kLanes>(s);
    } else {
      const int warp = threadIdx.x / kWarp;
      s = warp_shares(s);
      if (threadIdx.x % kWarp == 0) smem[warp] = s;
      __syncthreads();
      if (threadIdx.x % kLanes == 0) {
#pragma unroll
        for (int other = 1; other < kLanes / kWarp; ++other) s.add(smem[warp + other]);
      }
      __syncthreads();
      return s;
    }
  }
};

// f(group, lane, lanes) for every group of a slab: a warp for large groups, a thread for small ones.
template <int kThreads, typename F>
__device__ __forceinline__ void each_group(int groups, int members, F f) {
  const bool large = members >= kWarp;
  const int lanes = large ? kWarp : 1;
#pragma unroll 1
  for (int group = threadIdx.x / lanes; group < groups; group += kThreads / lanes) f(group, threadIdx.x % lanes, large);
}

// The sum over the members of a group, each with its weight(member).
template <typename Weight>
__device__ __forceinline__ Shares over_members(const Shares* sums, int members, int lane, bool large, Weight weight) {
  Shares all = {0, 0};
#pragma unroll 1
  for (int j = lane; j < members; j += large ? kWarp : 1)
    all.add({weight(j) * sums[j].plain, weight(j) * sums[j].along});
  return large ? warp_shares(all) : all;
}

// The sums of x of a thread, around its first value.
template <bool kLast, int kVector, typename T>
struct Moving {
  static constexpr int kOwn = kLast ? kVector : 1;
  const T* data;
  Shifted<arithmetic_t<T>> own[kOwn];

  __device__ __forceinline__ Moving(const T* from, int first) : data(from) {
#pragma unroll
    for (int v = 0; v < kOwn; ++v)
      own[v] = Shifted<arithmetic_t<T>>(first < 0 ? arithmetic_t<T>(0) : widen(from[first + v]));
  }
  __device__ __forceinline__ void operator()(int at) {
    const auto here = load<T, kVector>(data + at);
#pragma unroll
    for (int v = 0; v < kVector; ++v) own[kLast ? v : 0].add(widen(here.at[v]));
  }
};

// Weight and bias of every channel of a slab, to where its coefficients will be: fetched while the copies are under
// way.
template <int kThreads, typename T>
__device__ __forceinline__ void fetch_parameters(const Held& held, const Parameter<T>& weight, const Parameter<T>& bias,
                                                 Affine<arithmetic_t<T>>* affine) {
  using A = arithmetic_t<T>;
#pragma unroll 1
  for (int j = threadIdx.x; j < held.mine; j += kThreads)
    affine[j] = {A(0), weight.at(held.first + j, A(1)), bias.at(held.first + j, A(0)), A(0)};
}

// The coefficients of every channel of a slab of x in shared memory, and the statistics; a barrier is left to the
// caller.
template <bool kLast, int kVector, int kSide, int kThreads, typename T>
__device__ __forceinline__ void find_affine(const Held& held, const Units<kLast, kVector, kSide, kThreads>& units,
                                            const T* x, int members, int tile, long long groups, bool known,
                                            const Statistic<T>& statistic, Affine<arithmetic_t<T>>* affine,
                                            Shares* sums, Shares* smem) {
  using Own = Moving<kLast, kVector, T>;
  const auto origin = [&](int channel) { return double(widen(x[channel / members * members * units.pitch])); };
  if (!known)
    units.sum(
        sums, smem, [&](int unit) { return Own(x, units.at(unit).template first<kVector>(units.lane)); },
        [&](const Own& own, int unit, int v, int vectors) {
          return around(own.own[v], origin(unit * Own::kOwn + v), kLast ? vectors : vectors * kVector);
        });
  each_group<kThreads>(held.mine / members, members, [&](int group, int lane, bool large) {
    const int first = group * members;
    const Shares all = known ? Shares{0, 0} : over_members(sums + first, members, lane, large, [](int) { return 1.0; });
    const auto found =
        statistic.find(all, origin(first), held.batch * groups + held.index * (tile / members) + group, lane == 0);
#pragma unroll 1
    for (int j = lane; j < members; j += large ? kWarp : 1)
      affine[first + j] = found.affine(affine[first + j].scale, affine[first + j].shift);
  });
}

}  // namespace dnnarray
