#include "physical_memory.h"

namespace fargpu::client {

std::uint64_t PhysicalMemory::kept_bytes(int device) const {
  const auto found = on_.find(device);
  return found == on_.end() ? 0 : found->second.kept_bytes;
}

void PhysicalMemory::set_plenty(int device, bool plenty) {
  if (plenty) plenty_.insert(device);
  else plenty_.erase(device);
}

void PhysicalMemory::hold(CUmemGenericAllocationHandle allocation, std::uint64_t bytes, int device,
                          std::uint32_t handle_types) {
  Held& held = held_.try_emplace(allocation, Held{bytes, device, handle_types, 0}).first->second;
  if (held.holds++ == 0) on_[device].bytes += bytes;
}

void PhysicalMemory::keep(const Kind& kind, CUmemGenericAllocationHandle allocation) {
  spares_[kind].push_back(allocation);
  on_[kind.device].bytes += kind.bytes;
  on_[kind.device].kept_bytes += kind.bytes;
}

std::optional<CUmemGenericAllocationHandle> PhysicalMemory::take_spare(const Kind& kind) {
  const auto found = spares_.find(kind);
  if (found == spares_.end()) return std::nullopt;
  const CUmemGenericAllocationHandle allocation = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) spares_.erase(found);
  on_[kind.device].kept_bytes -= kind.bytes;
  held_.emplace(allocation, Held{kind.bytes, kind.device, kind.handle_types, 1});
  return allocation;
}

std::vector<CUmemGenericAllocationHandle> PhysicalMemory::take_spares(int device, std::uint64_t bytes_left) {
  SpareMemory& memory = on_[device];
  std::vector<CUmemGenericAllocationHandle> taken;
  for (auto it = spares_.begin(); it != spares_.end() && memory.kept_bytes > bytes_left;) {
    auto& [kind, allocations] = *it;
    for (; kind.device == device && !allocations.empty() && memory.kept_bytes > bytes_left; allocations.pop_back()) {
      taken.push_back(allocations.back());
      memory.kept_bytes -= kind.bytes;
      memory.bytes -= kind.bytes;
    }
    it = allocations.empty() ? spares_.erase(it) : std::next(it);
  }
  return taken;
}

std::optional<PhysicalMemory::Held> PhysicalMemory::held(CUmemGenericAllocationHandle allocation) const {
  const auto found = held_.find(allocation);
  return found == held_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PhysicalMemory::Held> PhysicalMemory::drop(CUmemGenericAllocationHandle allocation) {
  const auto found = held_.find(allocation);
  if (found == held_.end()) return std::nullopt;
  const Held held = found->second;
  if (--found->second.holds == 0) {
    on_[held.device].bytes -= held.bytes;
    held_.erase(found);
  }
  return held;
}

}  // namespace fargpu::client
