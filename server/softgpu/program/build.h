#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/program.h"
#include "program/error.h"
#include "ptx/module.h"

namespace fargpu::softgpu::program {

/// Builds the program of one module, or of several that are linked: definitions of one serve the
/// declarations of others. Throws ptx::SyntaxError or LinkError. Kernels that use something this
/// device does not have are there, marked as unsupported.
std::shared_ptr<const Program> build(const std::vector<const ptx::Module*>& modules);

}  // namespace fargpu::softgpu::program
