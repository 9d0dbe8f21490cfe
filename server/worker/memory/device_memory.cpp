#include "device_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "protocol/limits.h"

namespace fargpu::server {

DeviceMemory::DeviceMemory(DriverTable& driver, Ledger& ledger, std::uint64_t window_base, std::uint64_t window_bytes)
    : driver_(driver), ledger_(ledger), window_base_(window_base), window_bytes_(window_bytes) {}

// Frees what is left: in the real worker the process ends anyway, in tests the driver lives on.
DeviceMemory::~DeviceMemory() {
  for (const auto& [address, mapping] : mappings_)
    if (!mapping.away) driver_.cuMemUnmap(address, mapping.bytes);
  for (const auto& [handle, held] : handles_)
    if (!held.away) driver_.cuMemRelease(handle);
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

CUresult DeviceMemory::open(std::uint64_t address, int for_device) {
  Mapping& mapping = mappings_.at(address);
  mapping.opened_for = for_device;
  const int device = mapping.allocation->device();
  const CUresult result = give_access(address, mapping.bytes, device);
  return result == CUDA_SUCCESS && for_device != device ? set_access(address, mapping.bytes, for_device, true) : result;
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
    if (!(mapping.backed || mapping.opened_for) || mapping.allocation->device() != to) continue;
    if (!allowed && mapping.opened_for == from) continue;
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
  Held& held = handles_[handle];
  if (held.holds > 0) driver_.cuMemRelease(handle);  // one reference is enough
  if (held.holds == holds_max) return CUDA_ERROR_OUT_OF_MEMORY;
  if (held.holds++ == 0) held.charge = std::move(charge);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::export_to(CUmemGenericAllocationHandle handle, int& descriptor) {
  return driver_.cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult DeviceMemory::release(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.holds > 1) {
    --found->second.holds;
    return CUDA_SUCCESS;
  }
  const CUresult result = driver_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) handles_.erase(found);
  return result;
}

CUresult DeviceMemory::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset,
                           CUmemGenericAllocationHandle handle, int& device) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || !in_window(address, bytes) || overlaps(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Charge>& allocation = found->second.charge;
  if (offset != 0 || bytes != allocation->bytes())
    return CUDA_ERROR_NOT_SUPPORTED;  // as NVIDIA's driver: whole allocations
  const CUresult result = driver_.cuMemMap(address, bytes, offset, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  mappings_[address] = {bytes, allocation, false};
  device = allocation->device();
  return result;
}

CUresult DeviceMemory::unmap(std::uint64_t address, std::uint64_t bytes) {
  const auto first = mappings_.find(address);
  auto last = first;
  for (std::uint64_t left = bytes; left > 0; left -= std::exchange(last, std::next(last))->second.bytes)
    if (last == mappings_.end() || last->first != address + (bytes - left) || last->second.bytes > left)
      return CUDA_ERROR_INVALID_VALUE;
  CUresult result = first == last ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  for (auto mapping = first; mapping != last;) {
    const CUresult bad = driver_.cuMemUnmap(mapping->first, mapping->second.bytes);
    if (bad != CUDA_SUCCESS) result = bad;
    mapping = bad == CUDA_SUCCESS ? mappings_.erase(mapping) : std::next(mapping);
  }
  return result;
}

CUresult DeviceMemory::retain(std::uint64_t address, CUmemGenericAllocationHandle& handle) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.divided) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = driver_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
  if (result != CUDA_SUCCESS) return result;
  return hold(handle, found->second.allocation);
}

// --- leaving and coming back ----------------------------------------------------------------------------------------

// Whether contents can be read and written here by the memory's own device.
bool DeviceMemory::at_hand(const Mapping& mapping, std::uint64_t address) const {
  if (mapping.backed) return true;
  const CUmemLocation own{CU_MEM_LOCATION_TYPE_DEVICE, mapping.allocation->device()};
  unsigned long long flags = 0;
  return driver_.cuMemGetAccess(&flags, &own, address) == CUDA_SUCCESS && flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

// What others have too (another session, an array) is not the session's to take away. Memory without a place where its
// contents could be read stays.
std::vector<DeviceMemory::Piece> DeviceMemory::pieces() const {
  struct Found {
    Piece piece;
    long known = 0;  // that many of its users are mappings and handles
  };
  std::map<std::shared_ptr<Charge>, Found> all;
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.away || !mapping.allocation->charged() || mapping.allocation->companion) continue;
    Found& found = all[mapping.allocation];
    ++found.known;
    found.piece.places.push_back({address, {}});
    if (found.piece.bytes != 0 || !at_hand(mapping, address)) continue;
    found.piece.address = address;
    found.piece.bytes = mapping.bytes;
    found.piece.device = mapping.allocation->device();
  }
  for (const auto& [handle, held] : handles_)
    if (const auto found = all.find(held.charge); found != all.end() && found->second.piece.handle == 0) {
      ++found->second.known;
      found->second.piece.handle = handle;
    }
  std::vector<Piece> pieces;
  for (auto& [charge, found] : all)
    if (found.piece.bytes != 0 && charge.use_count() == found.known + 1) pieces.push_back(std::move(found.piece));
  return pieces;
}

CUresult DeviceMemory::leave(Piece& piece) {
  CUmemGenericAllocationHandle handle = piece.handle;
  const bool held = handle != 0;
  CUresult result = CUDA_SUCCESS;
  if (!held) result = driver_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(piece.address));
  if (result != CUDA_SUCCESS) return result;
  result = note(piece, handle);
  if (result == CUDA_SUCCESS) result = take(piece, handle);
  if (result == CUDA_SUCCESS || !held) driver_.cuMemRelease(handle);
  if (result != CUDA_SUCCESS) return result;
  for (const Piece::Place& place : piece.places) mappings_.at(place.address).away = true;
  piece.away = true;
  if (held) rename(piece, ++last_handle_away_);
  ledger_.leave(piece.device, piece.bytes);
  return CUDA_SUCCESS;
}

void DeviceMemory::rename(Piece& piece, CUmemGenericAllocationHandle handle) {
  auto held = handles_.extract(piece.handle);
  held.key() = piece.handle = handle;
  held.mapped().away = piece.away;
  handles_.insert(std::move(held));
}

// What the memory has to be like again.
CUresult DeviceMemory::note(Piece& piece, CUmemGenericAllocationHandle handle) const {
  CUresult result = driver_.cuMemGetAllocationPropertiesFromHandle(&piece.properties, handle);
  for (Piece::Place& place : piece.places) {
    place.access.clear();
    for (int device = 0; device < static_cast<int>(ledger_.charged().size()) && result == CUDA_SUCCESS; ++device) {
      const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
      unsigned long long flags = 0;
      result = driver_.cuMemGetAccess(&flags, &location, place.address);
      if (flags != 0) place.access.push_back({location, static_cast<CUmemAccess_flags>(flags)});
    }
  }
  return result;
}

// Away from all its places, or from none.
CUresult DeviceMemory::take(const Piece& piece, CUmemGenericAllocationHandle handle) {
  for (std::size_t i = 0; i < piece.places.size(); ++i) {
    const CUresult result = driver_.cuMemUnmap(piece.places[i].address, piece.bytes);
    if (result == CUDA_SUCCESS) continue;
    put(piece, i, handle);
    return result;
  }
  return CUDA_SUCCESS;
}

// At the first of its places, or at none.
CUresult DeviceMemory::put(const Piece& piece, std::size_t places, CUmemGenericAllocationHandle handle) {
  for (std::size_t i = 0; i < places; ++i) {
    const auto& [address, access] = piece.places[i];
    CUresult result = driver_.cuMemMap(address, piece.bytes, 0, handle, 0);
    const bool mapped = result == CUDA_SUCCESS;
    if (mapped && !access.empty()) result = driver_.cuMemSetAccess(address, piece.bytes, access.data(), access.size());
    if (result == CUDA_SUCCESS) continue;
    for (std::size_t put = 0; put < i + (mapped ? 1 : 0); ++put)
      driver_.cuMemUnmap(piece.places[put].address, piece.bytes);
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::come_back(Piece& piece) {
  if (!piece.away) return CUDA_SUCCESS;
  // First, so that nobody takes it for memory that the driver needs by itself.
  ledger_.come_back(piece.device, piece.bytes);
  CUmemGenericAllocationHandle handle{};
  CUresult result = driver_.cuMemCreate(&handle, piece.bytes, &piece.properties, 0);
  const bool made = result == CUDA_SUCCESS;
  if (made) result = put(piece, piece.places.size(), handle);
  if (made && (result != CUDA_SUCCESS || piece.handle == 0)) driver_.cuMemRelease(handle);  // mappings keep the memory
  if (result != CUDA_SUCCESS) {
    ledger_.leave(piece.device, piece.bytes);
    return result;
  }
  for (const Piece::Place& place : piece.places) mappings_.at(place.address).away = false;
  piece.away = false;
  if (piece.handle != 0) rename(piece, handle);
  return CUDA_SUCCESS;
}

std::vector<DeviceMemory::Piece> DeviceMemory::divide(const Piece& piece, std::uint64_t bytes_max) {
  const std::uint64_t part_bytes = std::max(bytes_max / granularity, std::uint64_t{1}) * granularity;
  Mapping& whole = mappings_.at(piece.address);
  if (piece.bytes <= part_bytes || piece.handle != 0 || piece.places.size() != 1 || !whole.backed) return {piece};
  std::vector<Piece> parts;
  for (std::uint64_t offset = 0; offset < piece.bytes; offset += part_bytes) {
    Piece& part = parts.emplace_back(piece);
    part.address = part.places.front().address = piece.address + offset;
    part.bytes = std::min(part_bytes, piece.bytes - offset);
    if (offset > 0) mappings_[part.address] = {part.bytes, whole.allocation->split(part.bytes), true, true, true};
  }
  whole.bytes = part_bytes;
  whole.divided = true;
  return parts;
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
