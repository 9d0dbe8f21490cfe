#pragma once
// Launch attributes, between the wire and the driver.

#include <cuda.h>

#include <vector>

#include "operations.capnp.h"
#include "server/worker/objects/objects.h"

namespace fargpu::server {

CUresult read_attribute(Objects& objects, wire::LaunchAttribute::Reader in, CUlaunchAttribute& out);
CUresult read_attributes(Objects& objects, capnp::List<wire::LaunchAttribute>::Reader in,
                         std::vector<CUlaunchAttribute>& out);
CUresult write_attribute(Objects& objects, const CUlaunchAttribute& attribute, wire::LaunchAttribute::Builder out);

}  // namespace fargpu::server
