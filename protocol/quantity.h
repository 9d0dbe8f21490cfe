#pragma once
// Amounts as people write them: memory, shares, times. Each parser gives nothing for what it does not understand.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fargpu {

/// "8GiB", "8g", "512 MiB", "100000": units are powers of 1024, whatever the spelling. Decimals are understood ("1.5GiB"), and
/// what is left of a byte is left out.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
/// "50%" or "50"; at most `most`.
std::optional<std::uint32_t> parse_percent(std::string_view text, std::uint32_t most = 100);
/// "90", "90s", "10min", "2h", "7d"; a number alone is seconds.
std::optional<std::chrono::seconds> parse_duration(std::string_view text);

/// "8.0 GiB", "512.0 MiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace fargpu
