#pragma once

#include <memory>
#include <string>

#include "ptx/module.h"

namespace fargpu::softgpu::ptx {

/// Parses a whole PTX text; throws SyntaxError. The module owns the text.
std::unique_ptr<Module> parse(std::string text);

}  // namespace fargpu::softgpu::ptx
