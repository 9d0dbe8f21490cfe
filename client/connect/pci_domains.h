#pragma once
// PCI domains of devices of several hosts, which each host numbers by itself.

#include <vector>

namespace fargpu::client {

/// Of each host, in the order of the pool, the domains of its devices: changed where an earlier host has the same, so
/// that no two hosts share one. The driver API and NVML tell of these.
void separate_domains(std::vector<std::vector<unsigned>>& hosts);

}  // namespace fargpu::client
