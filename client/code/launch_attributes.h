#pragma once
// Launch attributes on their way to the wire and back.

#include <cuda.h>

#include "client/base/handle_map.h"
#include "client/objects/stream.h"
#include "operations.capnp.h"

namespace fargpu::client {

/// One launch attribute; zeros without a value.
CUlaunchAttribute attribute_of(CUlaunchAttributeID id, const CUlaunchAttributeValue* value);
/// One launch attribute, of a kind that can travel (cuda_facts.h), there and back. `events`: that it may name.
CUresult write_attribute(const HandleMap<Event>& events, const CUlaunchAttribute& attribute,
                         wire::LaunchAttribute::Builder out);
void read_attribute(wire::LaunchAttribute::Reader in, CUlaunchAttributeValue& value);
/// Writes launch attributes; CUDA_ERROR_NOT_SUPPORTED, said once, for one that cannot travel.
CUresult write_attributes(const HandleMap<Event>& events, const CUlaunchAttribute* attributes, unsigned count,
                          capnp::List<wire::LaunchAttribute>::Builder list);

}  // namespace fargpu::client
