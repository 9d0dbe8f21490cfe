#pragma once
// Devices' numbers, as bytes and as text.

#include <capnp/blob.h>
#include <cuda.h>

#include <string>

namespace fargpu::client {

/// All zero if there are not sixteen bytes.
CUuuid read_uuid(capnp::Data::Reader bytes);

/// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
std::string uuid_text(const CUuuid& uuid);

}  // namespace fargpu::client
