#pragma once
// Many hosts are asked at once, since one that is silent is waited for for seconds.

#include <chrono>
#include <cstddef>
#include <functional>

namespace fargpu::client::cli {

/// How long further ones of many hosts are begun with, where not all may answer.
inline constexpr std::chrono::seconds begin_within{10};

/// Calls `work` with 0 to `count` - 1, by up to 32 threads. Begins nothing further after `until`. Returns how many it
/// has begun; all of them have ended. What `work` throws is thrown here.
std::size_t at_once(std::size_t count, const std::function<void(std::size_t)>& work,
                    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

}  // namespace fargpu::client::cli
