#pragma once
// What NVML's field values tell of NVLinks.

#include <optional>

#include "client/connect/host_report.h"

namespace fargpu::client::nvml {

/// The value of a field (NVML_FI_DEV_NVLINK_*) of the link of that number; none if the field is another one, or the
/// device has no such link.
std::optional<unsigned> link_field(const report::Device& device, unsigned field, unsigned number);

}  // namespace fargpu::client::nvml
