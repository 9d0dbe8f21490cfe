#pragma once
// Groups of multiprocessors, into which devices are divided among leases: by their numbers, as the broker tells them to
// a worker.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fargpu::server {

/// Multiprocessors of a group: the least that a green context can be made of on every GPU (CUDA Driver API, "Green
/// Contexts").
constexpr unsigned sm_group_size = 8;
/// More groups than any device has.
constexpr unsigned sm_groups_max = 128;

/// Of each of several devices, some of its groups, in ascending order.
using SmGroups = std::vector<std::vector<unsigned>>;

/// As an argument: "0,1,2:4" is three groups of a first device and one of a second.
std::string text_of(const SmGroups& groups);
/// Nothing for what is no such text.
std::optional<SmGroups> parse_sm_groups(std::string_view text);

}  // namespace fargpu::server
