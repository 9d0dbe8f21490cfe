#pragma once
// Lines for the program's user where the driver's error, CUDA_ERROR_OUT_OF_MEMORY, does not say what is full.

#include <cstdint>
#include <string>

#include "server/quota/host_budget.h"
#include "server/quota/ledger.h"

namespace fargpu::server {

/// The host's memory, of which so many bytes may be taken.
std::string full_text(HostBudget::Bound bound, std::uint64_t bytes_max);
/// Device memory.
std::string full_text(const Ledger::Refusal& refusal);
/// Handles: none is left for what a call made.
std::string exhausted_text();

}  // namespace fargpu::server
