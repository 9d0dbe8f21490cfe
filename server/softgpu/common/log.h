#pragma once

#include <string>
#include <string_view>

namespace fargpu::softgpu {

/// One line on stderr, marked as ours.
void log_line(std::string_view text);
/// One line on stderr, unless this process has said it already.
void log_once(const std::string& text);

}  // namespace fargpu::softgpu
