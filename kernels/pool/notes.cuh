// What a block of unpool_tiles.cu notes of its work, for unpool_shared.cu.
#pragma once

namespace dnnarray {

constexpr unsigned kAtHome = 1;  // it wrote its own elements alone
constexpr unsigned kNamesNext =
    2;  // an index names a place of a block beside it, which looks at that element unless it was at home
constexpr unsigned kNamesFar = 4;  // one names a place whose block does not look at it

// Whether blocks of a plane with all these notes have left something undone.
__device__ __forceinline__ bool undone(unsigned notes) {
  return (notes & kNamesFar) != 0 || (notes & (kNamesNext | kAtHome)) == (kNamesNext | kAtHome);
}

}  // namespace dnnarray
