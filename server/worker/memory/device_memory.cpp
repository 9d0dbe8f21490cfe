#include "device_memory.h"

#include "protocol/limits.h"

namespace fargpu::server {

DeviceMemory::DeviceMemory(DriverTable& driver, Ledger& ledger, std::uint64_t window_base, std::uint64_t window_bytes)
    : driver_(driver), ledger_(ledger), window_base_(window_base), window_bytes_(window_bytes) {}

// Frees what is left: in the real worker the process ends anyway, in tests the driver lives on.
DeviceMemory::~DeviceMemory() {
  for (const auto& [address, mapping] : mappings_)
    if (!mapping.away) driver_.cuMemUnmap(address, mapping.bytes);
  for (const auto& [handle, held] : handles_)
    for (unsigned i = 0; i < held.second; ++i) driver_.cuMemRelease(handle);
}

bool DeviceMemory::in_window(std::uint64_t address, std::uint64_t bytes) const {
  return bytes > 0 && address % granularity == 0 && bytes % granularity == 0 && address >= window_base_ &&
         address - window_base_ <= window_bytes_ && bytes <= window_bytes_ - (address - window_base_);
}

bool DeviceMemory::overlaps(std::uint64_t address, std::uint64_t bytes) const {
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + bytes) return true;
  return next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
}

CUresult DeviceMemory::back(std::uint64_t address, std::uint64_t bytes, int device) {
  CUmemGenericAllocationHandle handle{};
  const CUresult result = make(address, bytes, device, handle);
  return result == CUDA_SUCCESS ? place(address, bytes, device, handle) : result;
}

CUmemAllocationProp DeviceMemory::own_memory(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  // Programs may share it with others (cuIpcGetMemHandle)
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUresult DeviceMemory::make(std::uint64_t address, std::uint64_t bytes, int device,
                            CUmemGenericAllocationHandle& handle) {
  if (!in_window(address, bytes) || overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return create(bytes, own_memory(device), handle);
}

CUresult DeviceMemory::place(std::uint64_t address, std::uint64_t bytes, int device,
                             CUmemGenericAllocationHandle handle) {
  int where = 0;
  CUresult result = map(address, bytes, 0, handle, where);
  release(handle);  // the mapping keeps the memory
  if (result != CUDA_SUCCESS) return result;
  mappings_.at(address).backed = true;
  result = give_access(address, bytes, device);
  if (result != CUDA_SUCCESS) unmap(address, bytes);
  return result;
}

CUresult DeviceMemory::give_access(std::uint64_t address, std::uint64_t bytes, int device) {
  CUresult result = set_access(address, bytes, device, true);
  for (const auto& [from, to] : peers_)
    if (to == device && result == CUDA_SUCCESS) result = set_access(address, bytes, from, true);
  return result;
}

CUresult DeviceMemory::set_access(std::uint64_t address, std::uint64_t bytes, int device, bool allowed) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return driver_.cuMemSetAccess(address, bytes, &access, 1);
}

CUresult DeviceMemory::set_peer_access(int from, int to, bool allowed) {
  if (from == to) return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = CUDA_SUCCESS;
  for (const auto& [address, mapping] : mappings_) {
    if (!mapping.backed || mapping.allocation->device() != to) continue;
    result = set_access(address, mapping.bytes, from, allowed);
    if (result != CUDA_SUCCESS) break;
  }
  if (result != CUDA_SUCCESS && allowed) return result;
  if (allowed) peers_.emplace(from, to);
  else peers_.erase({from, to});
  return result;
}

int DeviceMemory::device_of(std::uint64_t address) const {
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return -1;
  --it;
  return address - it->first < it->second.bytes ? it->second.allocation->device() : -1;
}

CUresult DeviceMemory::create(std::uint64_t bytes, const CUmemAllocationProp& prop,
                              CUmemGenericAllocationHandle& handle) {
  const int device = prop.location.id;
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
      static_cast<std::size_t>(device) >= ledger_.charged().size())
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Charge> charge = Charge::take(ledger_, device, bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver_.cuMemCreate(&handle, bytes, &prop, 0);
  if (result == CUDA_SUCCESS) handles_[handle] = {std::move(charge), 1};
  if (result == CUDA_ERROR_OUT_OF_MEMORY) shortage_ = Shortage{device, bytes};
  return result;
}

CUresult DeviceMemory::import(int descriptor, int device, std::uint64_t bytes, CUmemGenericAllocationHandle& handle) {
  if (device < 0 || static_cast<std::size_t>(device) >= ledger_.charged().size()) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult result =
      driver_.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) return result;
  return hold(handle, Charge::nothing(ledger_, device, bytes));
}

// The driver may have given a handle again that we have: it goes on standing for what it stood for.
CUresult DeviceMemory::hold(CUmemGenericAllocationHandle handle, std::shared_ptr<Charge> charge) {
  auto& [stands_for, holds] = handles_[handle];
  if (holds == holds_max) {
    driver_.cuMemRelease(handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (holds++ == 0) stands_for = std::move(charge);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::export_to(CUmemGenericAllocationHandle handle, int& descriptor) {
  return driver_.cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult DeviceMemory::release(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS && --found->second.second == 0) handles_.erase(found);
  return result;
}

CUresult DeviceMemory::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset,
                           CUmemGenericAllocationHandle handle, int& device) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || !in_window(address, bytes) || overlaps(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Charge>& allocation = found->second.first;
  if (offset != 0 || bytes != allocation->bytes())
    return CUDA_ERROR_NOT_SUPPORTED;  // as NVIDIA's driver: whole allocations
  const CUresult result = driver_.cuMemMap(address, bytes, offset, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  mappings_[address] = {bytes, allocation, false};
  device = allocation->device();
  return result;
}

CUresult DeviceMemory::unmap(std::uint64_t address, std::uint64_t bytes) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver_.cuMemUnmap(address, bytes);
  if (result == CUDA_SUCCESS) mappings_.erase(found);
  return result;
}

CUresult DeviceMemory::retain(std::uint64_t address, CUmemGenericAllocationHandle& handle) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
  if (result != CUDA_SUCCESS) return result;
  return hold(handle, found->second.allocation);
}

// What a handle, another mapping or another session has is theirs too.
std::vector<DeviceMemory::Piece> DeviceMemory::pieces() const {
  std::vector<Piece> pieces;
  for (const auto& [address, mapping] : mappings_)
    if (mapping.backed && !mapping.away && mapping.allocation->charged() && !mapping.allocation->companion &&
        mapping.allocation.use_count() == 1)
      pieces.push_back({address, mapping.bytes, mapping.allocation->device()});
  return pieces;
}

CUresult DeviceMemory::leave(const Piece& piece) {
  const CUresult result = driver_.cuMemUnmap(piece.address, piece.bytes);
  if (result != CUDA_SUCCESS) return result;
  mappings_.at(piece.address).away = true;
  ledger_.leave(piece.device, piece.bytes);
  return result;
}

CUresult DeviceMemory::come_back(const Piece& piece) {
  bool& away = mappings_.at(piece.address).away;
  if (!away) return CUDA_SUCCESS;
  // First, so that nobody takes it for memory that the driver needs by itself.
  ledger_.come_back(piece.device, piece.bytes);
  const CUresult result = make_again(piece);
  if (result == CUDA_SUCCESS) away = false;
  else ledger_.leave(piece.device, piece.bytes);
  return result;
}

CUresult DeviceMemory::make_again(const Piece& piece) {
  const CUmemAllocationProp prop = own_memory(piece.device);
  CUmemGenericAllocationHandle handle{};
  CUresult result = driver_.cuMemCreate(&handle, piece.bytes, &prop, 0);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuMemMap(piece.address, piece.bytes, 0, handle, 0);
  driver_.cuMemRelease(handle);  // the mapping keeps the memory
  if (result != CUDA_SUCCESS) return result;
  result = give_access(piece.address, piece.bytes, piece.device);
  if (result != CUDA_SUCCESS) driver_.cuMemUnmap(piece.address, piece.bytes);
  return result;
}

bool DeviceMemory::holds(std::uint64_t address, std::uint64_t bytes) const {
  if (const auto next = foreign_.upper_bound(address); next != foreign_.begin()) {
    const auto& [base, size] = *std::prev(next);
    const std::uint64_t offset = address - base;
    if (offset <= size && bytes <= size - offset) return true;
  }
  // A range may span several mappings that follow each other.
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return false;
  --it;
  std::uint64_t left = bytes;
  while (true) {
    if (it == mappings_.end() || address < it->first || address - it->first >= it->second.bytes) return false;
    const std::uint64_t here = it->second.bytes - (address - it->first);
    if (left <= here) return true;
    left -= here;
    address += here;
    ++it;
  }
}

}  // namespace fargpu::server
