#pragma once

namespace fargpu::softgpu {

/// What functions do that this device does not have: the name is logged once.
int unsupported(const char* name);

}  // namespace fargpu::softgpu
