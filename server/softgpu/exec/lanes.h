#pragma once

#include <bit>
#include <cstdint>

namespace fargpu::softgpu {

inline constexpr int warp_size = 32;

/// One bit per lane of a warp, lane 0 lowest.
using LaneMask = uint32_t;
inline constexpr LaneMask all_lanes = ~LaneMask{0};

/// One value per lane. Registers of a warp are kept this way, so that loops over lanes vectorize.
template <class T>
struct alignas(64) Lanes {
  T lane[warp_size];
};

inline int first_lane(LaneMask mask) { return std::countr_zero(mask); }
inline bool has_lane(LaneMask mask, int lane) { return (mask >> lane) & 1; }

/// Calls f(lane) for each lane of the mask in ascending order.
template <class F>
inline void for_each_lane(LaneMask mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

/// The first n lanes.
inline LaneMask first_lanes(uint32_t n) { return n >= warp_size ? all_lanes : (LaneMask{1} << n) - 1; }

}  // namespace fargpu::softgpu
