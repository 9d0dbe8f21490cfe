#pragma once

#include "exec/routine.h"
#include "program/ir.h"

namespace fargpu::softgpu::program {

/// Turns the intermediate form into the executable one: finds where lanes meet, gives registers
/// places, and labels distances. Fills code, constants and frame of the routine.
void assemble(IrFunction& function, Routine& routine);

}  // namespace fargpu::softgpu::program
