#pragma once

#include <string_view>

namespace fargpu::softgpu {

/// One line on stderr, marked as ours.
void log_line(std::string_view text);

}  // namespace fargpu::softgpu
