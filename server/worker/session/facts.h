#pragma once
// What a client must know of the host's devices, read from the driver once.

#include <cstdint>
#include <vector>

#include "control.capnp.h"
#include "driver_table.h"

namespace fargpu::server {

/// Fills in everything about the devices (those of `ordinals`, in that order). The driver must be initialised.
void write_facts(DriverTable& driver, const std::vector<int>& ordinals, wire::HostFacts::Builder facts);

}  // namespace fargpu::server
