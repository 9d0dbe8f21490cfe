#pragma once
// What people write (memory, shares, times) and what they are shown.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fargpu {

// Each parser gives nothing for what it does not understand.

/// "8GiB", "8g", "512 MiB", "100000": units are powers of 1024, whatever the spelling. Decimals are understood
/// ("1.5GiB"), and what is left of a byte is left out.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
/// "50%" or "50"; at most `most`.
std::optional<std::uint32_t> parse_percent(std::string_view text, std::uint32_t most = 100);
/// "90", "90s", "10min", "2h", "7d"; a number alone is seconds.
std::optional<std::chrono::seconds> parse_duration(std::string_view text);

/// "8.0 GiB", "512.0 MiB".
std::string bytes_text(std::uint64_t bytes);
/// "1 GPU", "3 GPUs".
std::string so_many(std::uint64_t count, std::string_view what);

/// Text that another machine sent, before it meets a terminal or a log: one line, of bounded length, nothing that
/// steers a terminal.
std::string printable(std::string_view text, std::size_t bytes_max = 128);

}  // namespace fargpu
