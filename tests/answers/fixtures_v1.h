#pragma once
// Fixtures of calls of 32 bits.

#include "world.h"

namespace answers {

Slot array_descriptor_v1(World& w);
Slot array3d_descriptor_v1(World& w);
Slot copy2d_v1(World& w);
Slot copy3d_v1(World& w);

}  // namespace answers
