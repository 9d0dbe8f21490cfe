#pragma once
// Launch attributes, between the wire and the driver.

#include <cuda.h>

#include <vector>

#include "operations.capnp.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

CUresult read_attribute(Session& session, wire::LaunchAttribute::Reader in, CUlaunchAttribute& out);
CUresult read_attributes(Session& session, capnp::List<wire::LaunchAttribute>::Reader in, std::vector<CUlaunchAttribute>& out);
CUresult write_attribute(Session& session, const CUlaunchAttribute& attribute, wire::LaunchAttribute::Builder out);

}  // namespace fargpu::server
