#include "graph_memory.h"

#include "device_memory.h"

namespace fargpu::client {

CUresult GraphMemory::allocate(Thread& thread, Context& context, int device, std::uint64_t bytes,
                               std::uint64_t& address) {
  const CUresult result =
      device_memory_.allocate(thread, context, bytes, address, device_memory_.pools().graph_of(device));
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex_);
  allocations_[address] = {.context = &context};
  return result;
}

void GraphMemory::discard(Thread& thread, std::uint64_t address) {
  {
    const std::lock_guard lock(mutex_);
    if (allocations_.erase(address) == 0) return;
  }
  give_back(thread, {address});
}

void GraphMemory::set_part(std::uint64_t address, std::uint64_t part) {
  const std::lock_guard lock(mutex_);
  if (const auto found = allocations_.find(address); found != allocations_.end()) found->second.part = part;
}

void GraphMemory::released(Thread& thread, std::uint64_t address, std::uint64_t part) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end() || found->second.part != part) return;  // it went with its context
    found->second.held = false;
    if (found->second.allocated) return;
    allocations_.erase(found);
  }
  give_back(thread, {address});
}

bool GraphMemory::knows(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return allocations_.contains(address);
}

CUresult GraphMemory::free(Thread& thread, std::uint64_t address) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end() || !found->second.allocated) return CUDA_ERROR_INVALID_VALUE;
    found->second.allocated = false;
    if (found->second.held) return CUDA_SUCCESS;
    allocations_.erase(found);
  }
  give_back(thread, {address});
  return CUDA_SUCCESS;
}

void GraphMemory::set_executable(Handle exec, wire::GraphMemory::Reader memory, bool free_on_launch) {
  Executable executable{.handle = exec, .free_on_launch = free_on_launch};
  for (const std::uint64_t address : memory.getAllocated()) executable.allocated.push_back(address);
  for (const std::uint64_t address : memory.getFreed()) executable.freed.push_back(address);
  const std::lock_guard lock(mutex_);
  // Also where there is no memory: the index may have been another one's.
  if (executable.allocated.empty() && executable.freed.empty() && memory.getWithin().size() == 0)
    executables_.erase(exec.index());
  else executables_[exec.index()] = std::move(executable);
}

void GraphMemory::update_executable(Handle exec, wire::GraphMemory::Reader memory) {
  bool free_on_launch = false;
  {
    const std::lock_guard lock(mutex_);
    if (const Executable* const executable = find(exec)) free_on_launch = executable->free_on_launch;
  }
  set_executable(exec, memory, free_on_launch);
}

const GraphMemory::Executable* GraphMemory::find(Handle exec) const {
  const auto found = executables_.find(exec.index());
  return found == executables_.end() || found->second.handle != exec ? nullptr : &found->second;
}

bool GraphMemory::used_by(Handle exec) const {
  const std::lock_guard lock(mutex_);
  return find(exec) != nullptr;
}

CUresult GraphMemory::may_launch(Handle exec) const {
  const std::lock_guard lock(mutex_);
  const Executable* const executable = find(exec);
  if (!executable) return CUDA_SUCCESS;
  const auto allocated = [&](std::uint64_t address) {
    const auto found = allocations_.find(address);
    return found != allocations_.end() && found->second.allocated;
  };
  for (const std::uint64_t address : executable->allocated)
    if (allocated(address) && !executable->free_on_launch) return CUDA_ERROR_INVALID_VALUE;
  for (const std::uint64_t address : executable->freed)
    if (!allocated(address)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

void GraphMemory::launched(Thread& thread, Handle exec) {
  std::vector<std::uint64_t> gone;
  {
    const std::lock_guard lock(mutex_);
    const Executable* const executable = find(exec);
    if (!executable) return;
    for (const std::uint64_t address : executable->freed) {
      const auto found = allocations_.find(address);
      if (found == allocations_.end()) continue;
      found->second.allocated = false;
      if (found->second.held) continue;
      allocations_.erase(found);
      gone.push_back(address);
    }
    for (const std::uint64_t address : executable->allocated)
      if (const auto found = allocations_.find(address); found != allocations_.end()) found->second.allocated = true;
  }
  give_back(thread, gone);
}

void GraphMemory::give_back(Thread& thread, const std::vector<std::uint64_t>& addresses) {
  for (const std::uint64_t address : addresses) device_memory_.discard(thread, address);
}

void GraphMemory::inherit(const Context& from, const Context& to) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, allocation] : allocations_)
    if (allocation.context == &from) allocation.context = &to;
}

void GraphMemory::context_closed(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(allocations_, [&](const auto& item) { return item.second.context == &context; });
}

}  // namespace fargpu::client
