#include "driver/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "driver/failure.h"

namespace fargpu::softgpu {
namespace {

constexpr uint64_t small_bytes_max = uint64_t{1} << 20;
constexpr uint64_t small_align = 512;
constexpr uint64_t arena_step = uint64_t{64} << 30;
constexpr DeviceAddress address_end = DeviceAddress{1} << device_address_bits;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

DeviceAddress as_device(const void* host) { return reinterpret_cast<DeviceAddress>(host); }

}  // namespace

AddressSpace::AddressSpace(std::vector<std::shared_ptr<MemoryAccount>> accounts) : accounts_(std::move(accounts)) {
  for (size_t i = 0; i < accounts_.size(); ++i) page_tables_.push_back(std::make_unique<PageTable>());
}

/// Addresses of our own, from what the host gave us without access.
DeviceAddress AddressSpace::take_addresses(uint64_t bytes, uint64_t align) {
  if (auto place = arena_.take(bytes, align)) return *place;
  uint64_t step = std::max(arena_step, round_up(bytes + align, large_page_bytes));
  void* reserved = MAP_FAILED;
  while (reserved == MAP_FAILED && step >= bytes + align) {
    reserved = mmap(nullptr, step + large_page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) step /= 2;
  }
  require(reserved != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  DeviceAddress piece = round_up(as_device(reserved), large_page_bytes);
  arena_pieces_[piece] = step;
  arena_.add(piece, step);
  auto place = arena_.take(bytes, align);
  require(place.has_value(), CUDA_ERROR_OUT_OF_MEMORY);
  return *place;
}

void AddressSpace::map_on_devices(DeviceAddress address, std::byte* host, uint64_t bytes, int owner) {
  for (int device = 0; device < static_cast<int>(page_tables_.size()); ++device)
    if (owner < 0 || device == owner || peers_.contains({device, owner}))
      page_tables_[device]->map(address, host, bytes, Access::read_write);
}

void AddressSpace::unmap_everywhere(DeviceAddress address, uint64_t bytes) {
  for (auto& table : page_tables_) table->unmap(address, bytes);
}

void AddressSpace::add_range(MemoryRange range) {
  range.serial = next_serial_++;
  DeviceAddress base = range.base;
  ranges_[base] = std::make_shared<MemoryRange>(std::move(range));
}

// ---- memory of the devices -----------------------------------------------------------------------------------------

DeviceAddress AddressSpace::allocate(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool) {
  require(bytes != 0);
  require(bytes <= accounts_[device]->total_bytes(), CUDA_ERROR_OUT_OF_MEMORY);
  std::lock_guard lock(mutex_);
  return bytes <= small_bytes_max ? allocate_small(device, context_id, bytes, pool)
                                  : allocate_large(device, context_id, bytes, pool);
}

DeviceAddress AddressSpace::allocate_small(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool) {
  uint64_t rounded = round_up(bytes, small_align);
  Slab* slab = nullptr;
  std::optional<uint64_t> offset;
  for (auto& [base, candidate] : slabs_) {
    if (candidate->device != device || candidate->context_id != context_id) continue;
    offset = candidate->free_offsets.take(rounded, small_align);
    if (!offset) continue;
    slab = candidate.get();
    break;
  }
  if (slab == nullptr) {
    auto physical = PhysicalMemory::create(accounts_[device], large_page_bytes, PhysicalMemory::Sharing::file);
    require(physical != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    auto created = std::make_unique<Slab>();
    created->base = take_addresses(large_page_bytes, large_page_bytes);
    created->device = device;
    created->context_id = context_id;
    created->free_offsets.add(0, large_page_bytes);
    map_on_devices(created->base, physical->host(), large_page_bytes, device);
    created->physical = std::move(physical);
    slab = created.get();
    slabs_[created->base] = std::move(created);
    offset = slab->free_offsets.take(rounded, small_align);
  }
  add_range({.base = slab->base + *offset,
             .bytes = bytes,
             .kind = MemoryKind::device,
             .device = device,
             .context_id = context_id,
             .host = slab->physical->host() + *offset,
             .physical = slab->physical,
             .physical_offset = *offset,
             .pool = pool});
  return slab->base + *offset;
}

DeviceAddress AddressSpace::allocate_large(int device, uint64_t context_id, uint64_t bytes, CUmemoryPool pool) {
  uint64_t rounded = round_up(bytes, large_page_bytes);
  auto physical = PhysicalMemory::create(accounts_[device], rounded, PhysicalMemory::Sharing::file);
  require(physical != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
  DeviceAddress base = take_addresses(rounded, large_page_bytes);
  std::byte* host = physical->host();
  map_on_devices(base, host, rounded, device);
  add_range({.base = base,
             .bytes = bytes,
             .kind = MemoryKind::device,
             .device = device,
             .context_id = context_id,
             .host = host,
             .physical = std::move(physical),
             .pool = pool});
  return base;
}

void AddressSpace::free(DeviceAddress address) {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(address);
  require(found != ranges_.end());
  MemoryKind kind = found->second->kind;
  require(kind == MemoryKind::device || kind == MemoryKind::managed || kind == MemoryKind::imported);
  release_range(found);
}

void AddressSpace::release_small(const MemoryRange& range) {
  auto slab = slabs_.find(range.base - range.physical_offset);
  slab->second->free_offsets.add(range.physical_offset, round_up(range.bytes, small_align));
  if (!slab->second->free_offsets.is_all_free(0, large_page_bytes)) return;
  unmap_everywhere(slab->first, large_page_bytes);
  arena_.add(slab->first, large_page_bytes);
  slabs_.erase(slab);
}

void AddressSpace::release_range(std::map<DeviceAddress, std::shared_ptr<MemoryRange>>::iterator it) {
  std::shared_ptr<MemoryRange> range = it->second;
  ranges_.erase(it);
  switch (range->kind) {
    case MemoryKind::device:
      if (range->bytes <= small_bytes_max) return release_small(*range);
      [[fallthrough]];
    case MemoryKind::imported: {
      uint64_t rounded = round_up(range->bytes, large_page_bytes);
      unmap_everywhere(range->base, rounded);
      arena_.add(range->base, rounded);
      return;
    }
    case MemoryKind::managed:
    case MemoryKind::host_allocated:
      unmap_host_pages(*range);
      munmap(range->host, round_up(range->bytes, small_page_bytes));
      return;
    case MemoryKind::host_registered: registered_.erase(range->base); return unmap_host_pages(*range);
    case MemoryKind::mapped: return;  // only cuMemUnmap ends these
  }
}

/// Ends the mapping of host memory, except for pages that other registered memory begins or ends
/// in.
void AddressSpace::unmap_host_pages(const MemoryRange& range) {
  DeviceAddress begin = range.base / small_page_bytes * small_page_bytes;
  DeviceAddress end = round_up(range.base + range.bytes, small_page_bytes);
  if (range_at(begin) != nullptr || ranges_.lower_bound(begin) != ranges_.lower_bound(range.base))
    begin += small_page_bytes;
  if (end > begin && ranges_.lower_bound(range.base) != ranges_.lower_bound(end)) end -= small_page_bytes;
  if (end > begin) unmap_everywhere(begin, end - begin);
}

void AddressSpace::free_all_of(uint64_t context_id) {
  std::lock_guard lock(mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    auto next = std::next(it);
    if (it->second->context_id == context_id) release_range(it);
    it = next;
  }
}

// ---- host memory ---------------------------------------------------------------------------------------------------

void AddressSpace::add_host_range(MemoryKind kind, int device, uint64_t context_id, std::byte* host, uint64_t bytes,
                                  unsigned flags) {
  DeviceAddress address = as_device(host);
  DeviceAddress page = address / small_page_bytes * small_page_bytes;
  uint64_t page_bytes = round_up(address + bytes, small_page_bytes) - page;
  map_on_devices(page, reinterpret_cast<std::byte*>(page), page_bytes, -1);
  add_range({.base = address,
             .bytes = bytes,
             .kind = kind,
             .device = device,
             .context_id = context_id,
             .host = host,
             .physical = nullptr,
             .flags = flags});
}

DeviceAddress AddressSpace::allocate_managed(int device, uint64_t context_id, uint64_t bytes, unsigned flags) {
  require(bytes != 0);
  void* host = mmap(nullptr, round_up(bytes, small_page_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(host != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  std::lock_guard lock(mutex_);
  add_host_range(MemoryKind::managed, device, context_id, static_cast<std::byte*>(host), bytes, flags);
  return as_device(host);
}

void* AddressSpace::allocate_host(int device, uint64_t context_id, uint64_t bytes, unsigned flags) {
  require(bytes != 0);
  void* host = mmap(nullptr, round_up(bytes, small_page_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(host != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  std::lock_guard lock(mutex_);
  add_host_range(MemoryKind::host_allocated, device, context_id, static_cast<std::byte*>(host), bytes, flags);
  return host;
}

void AddressSpace::register_host(int device, uint64_t context_id, void* address, uint64_t bytes, unsigned flags) {
  require(address != nullptr && bytes != 0);
  DeviceAddress begin = as_device(address);
  require(begin + bytes > begin && begin + bytes <= address_end);
  std::lock_guard lock(mutex_);
  auto next = ranges_.lower_bound(begin);
  bool overlaps = (next != ranges_.end() && next->first < begin + bytes) || range_at(begin) != nullptr;
  require(!overlaps, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  add_host_range(MemoryKind::host_registered, device, context_id, static_cast<std::byte*>(address), bytes, flags);
  registered_.insert(begin);
}

void AddressSpace::replace_unmapped_host() {
  std::lock_guard lock(mutex_);
  for (auto it = registered_.begin(); it != registered_.end();) {
    const DeviceAddress base = *it;
    const MemoryRange& range = *ranges_.at(base);
    const DeviceAddress page = base / small_page_bytes * small_page_bytes;
    const uint64_t bytes = round_up(base + range.bytes, small_page_bytes) - page;
    if (msync(reinterpret_cast<void*>(page), bytes, MS_ASYNC) == 0 || errno != ENOMEM) {
      ++it;
      continue;
    }
    void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(pages != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    auto changed = std::make_shared<MemoryRange>(range);
    changed->replacement = {static_cast<std::byte*>(pages), [bytes](std::byte* first) { munmap(first, bytes); }};
    changed->host = static_cast<std::byte*>(pages) + (base - page);
    map_on_devices(page, static_cast<std::byte*>(pages), bytes, -1);
    ranges_[base] = std::move(changed);
    it = registered_.erase(it);
  }
}

void AddressSpace::unregister_host(void* address) {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(as_device(address));
  require(found != ranges_.end() && found->second->kind == MemoryKind::host_registered,
          CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  release_range(found);
}

void AddressSpace::free_host(void* address) {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(as_device(address));
  require(found != ranges_.end() && found->second->kind == MemoryKind::host_allocated);
  release_range(found);
}

// ---- virtual memory management -------------------------------------------------------------------------------------

/// True if a wish can be granted. Within what the host gave us it must be free there; elsewhere it
/// must not meet what we know to be in use.
bool AddressSpace::take_wished(DeviceAddress begin, uint64_t bytes, bool& is_own) {
  DeviceAddress end = begin + bytes;
  auto overlaps = [&](const auto& pieces, auto bytes_of) {
    auto next = pieces.lower_bound(begin);
    if (next != pieces.end() && next->first < end) return true;
    if (next == pieces.begin()) return false;
    auto previous = std::prev(next);
    return previous->first + bytes_of(previous->second) > begin;
  };
  if (overlaps(arena_pieces_, [](uint64_t piece_bytes) { return piece_bytes; })) {
    is_own = true;
    return arena_.take_at(begin, bytes);
  }
  return !overlaps(reservations_, [](const Reservation& r) { return r.bytes; }) &&
         !overlaps(ranges_, [](const auto& range) { return range->bytes; });
}

DeviceAddress AddressSpace::reserve(uint64_t bytes, uint64_t align, DeviceAddress wished) {
  require(bytes != 0 && bytes % large_page_bytes == 0 && bytes < address_end);
  require(align == 0 || std::has_single_bit(align));
  align = std::max(align, large_page_bytes);
  std::lock_guard lock(mutex_);
  bool is_own = false;
  DeviceAddress address = wished;
  bool can_grant =
      wished != 0 && wished % align == 0 && wished + bytes <= address_end && take_wished(wished, bytes, is_own);
  if (!can_grant) {
    address = take_addresses(bytes, align);
    is_own = true;
  }
  reservations_[address] = {bytes, is_own};
  return address;
}

void AddressSpace::free_reservation(DeviceAddress address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = reservations_.find(address);
  require(found != reservations_.end() && found->second.bytes == bytes);
  auto range = ranges_.lower_bound(address);
  require(range == ranges_.end() || range->first >= address + bytes);
  if (found->second.is_own) arena_.add(address, bytes);
  reservations_.erase(found);
}

bool AddressSpace::is_reserved(DeviceAddress address, uint64_t bytes) const {
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  uint64_t offset = address - reservation->first;
  return offset <= reservation->second.bytes && bytes <= reservation->second.bytes - offset;
}

void AddressSpace::map(DeviceAddress address, uint64_t bytes, int device, std::shared_ptr<PhysicalMemory> physical,
                       uint64_t offset) {
  require(bytes != 0 && address % large_page_bytes == 0);
  std::lock_guard lock(mutex_);
  require(is_reserved(address, bytes));
  require(offset == 0 && bytes == physical->bytes(), CUDA_ERROR_NOT_SUPPORTED);
  auto next = ranges_.lower_bound(address);
  require((next == ranges_.end() || next->first >= address + bytes) && range_at(address) == nullptr);
  std::byte* host = physical->host() + offset;
  add_range({.base = address,
             .bytes = bytes,
             .kind = MemoryKind::mapped,
             .device = device,
             .host = host,
             .physical = std::move(physical),
             .physical_offset = offset});
}

std::vector<std::shared_ptr<PhysicalMemory>> AddressSpace::unmap(DeviceAddress address, uint64_t bytes) {
  require(bytes != 0);
  std::lock_guard lock(mutex_);
  require(is_reserved(address, bytes));
  // Whole mappings only; there may be gaps, or nothing else.
  auto begin = ranges_.lower_bound(address), end = ranges_.lower_bound(address + bytes);
  auto is_inside = [&](const MemoryRange& range) {
    return range.kind == MemoryKind::mapped && range.base + range.bytes <= address + bytes;
  };
  for (auto it = begin; it != end; ++it) require(is_inside(*it->second));
  auto before = range_at(address);
  require(before == nullptr || before->base == address);
  unmap_everywhere(address, bytes);
  std::vector<std::shared_ptr<PhysicalMemory>> unmapped;
  for (auto it = begin; it != end; it = ranges_.erase(it)) {
    unmapped.push_back(it->second->physical);
    for (int device = 0; device < static_cast<int>(page_tables_.size()); ++device) accesses_.erase({it->first, device});
  }
  return unmapped;
}

void AddressSpace::set_access(DeviceAddress address, uint64_t bytes, int device, Access access) {
  std::lock_guard lock(mutex_);
  uint64_t covered = 0;
  require(bytes != 0);
  while (covered < bytes) {
    auto found = ranges_.find(address + covered);
    require(found != ranges_.end() && found->second->kind == MemoryKind::mapped);
    require(found->second->bytes <= bytes - covered);
    covered += found->second->bytes;
  }
  for (uint64_t done = 0; done < bytes;) {
    const MemoryRange& range = *ranges_.find(address + done)->second;
    done += range.bytes;
    accesses_[{range.base, device}] = access;
    if (access == Access::none) page_tables_[device]->unmap(range.base, range.bytes);
    else page_tables_[device]->map(range.base, range.host, range.bytes, access);
  }
}

Access AddressSpace::get_access(DeviceAddress address, int device) const {
  std::lock_guard lock(mutex_);
  auto range = range_at(address);
  require(range != nullptr && range->kind == MemoryKind::mapped);
  auto found = accesses_.find({range->base, device});
  return found == accesses_.end() ? Access::none : found->second;
}

DeviceAddress AddressSpace::map_imported(int device, uint64_t context_id, std::shared_ptr<PhysicalMemory> physical) {
  std::lock_guard lock(mutex_);
  uint64_t bytes = round_up(physical->bytes(), large_page_bytes);
  DeviceAddress base = take_addresses(bytes, large_page_bytes);
  std::byte* host = physical->host();
  map_on_devices(base, host, round_up(physical->bytes(), small_page_bytes), device);
  add_range({.base = base,
             .bytes = physical->bytes(),
             .kind = MemoryKind::imported,
             .device = device,
             .context_id = context_id,
             .host = host,
             .physical = std::move(physical)});
  return base;
}

// ---- peers ---------------------------------------------------------------------------------------------------------

void AddressSpace::enable_peer(int device, int peer) {
  std::lock_guard lock(mutex_);
  require(peers_.emplace(device, peer).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  for (auto& [base, slab] : slabs_)
    if (slab->device == peer)
      page_tables_[device]->map(base, slab->physical->host(), large_page_bytes, Access::read_write);
  for (auto& [base, range] : ranges_) {
    bool is_large = range->kind == MemoryKind::device && range->bytes > small_bytes_max;
    if (range->device == peer && is_large)
      page_tables_[device]->map(base, range->host, round_up(range->bytes, large_page_bytes), Access::read_write);
  }
}

void AddressSpace::disable_peer(int device, int peer) {
  std::lock_guard lock(mutex_);
  require(peers_.erase({device, peer}) != 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  for (auto& [base, slab] : slabs_)
    if (slab->device == peer) page_tables_[device]->unmap(base, large_page_bytes);
  for (auto& [base, range] : ranges_) {
    bool is_large = range->kind == MemoryKind::device && range->bytes > small_bytes_max;
    if (range->device == peer && is_large) page_tables_[device]->unmap(base, round_up(range->bytes, large_page_bytes));
  }
}

bool AddressSpace::is_peer(int device, int peer) const {
  std::lock_guard lock(mutex_);
  return peers_.contains({device, peer});
}

void AddressSpace::set_pool_peer(int device, int peer, bool wants_access) {
  bool has_access = is_peer(device, peer);
  if (wants_access && !has_access) enable_peer(device, peer);
  if (!wants_access && has_access) disable_peer(device, peer);
}

// ---- queries -------------------------------------------------------------------------------------------------------

std::shared_ptr<MemoryRange> AddressSpace::range_at(DeviceAddress address) const {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const std::shared_ptr<MemoryRange>& range = std::prev(next)->second;
  return range->contains(address) ? range : nullptr;
}

std::shared_ptr<const MemoryRange> AddressSpace::find(DeviceAddress address) const {
  std::lock_guard lock(mutex_);
  return range_at(address);
}

std::optional<std::pair<DeviceAddress, uint64_t>> AddressSpace::find_reservation(DeviceAddress address) const {
  std::lock_guard lock(mutex_);
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return std::nullopt;
  auto found = std::prev(next);
  if (address - found->first >= found->second.bytes) return std::nullopt;
  return std::pair{found->first, found->second.bytes};
}

void AddressSpace::set_sync_memops(DeviceAddress address, bool value) {
  std::lock_guard lock(mutex_);
  auto range = range_at(address);
  require(range != nullptr);
  // Readers may hold the range; it is replaced rather than changed.
  auto changed = std::make_shared<MemoryRange>(*range);
  changed->sync_memops = value;
  ranges_[range->base] = std::move(changed);
}

bool AddressSpace::is_plain_host(DeviceAddress address) const {
  std::lock_guard lock(mutex_);
  if (range_at(address) != nullptr) return false;
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return true;
  auto found = std::prev(next);
  return address - found->first >= found->second.bytes;
}

bool AddressSpace::any_access(DeviceAddress base) const {
  for (auto it = accesses_.lower_bound({base, 0}); it != accesses_.end() && it->first.first == base; ++it)
    if (it->second != Access::none) return true;
  return false;
}

std::optional<std::vector<MemorySpan>> AddressSpace::spans(DeviceAddress address, uint64_t bytes) const {
  if (is_plain_host(address)) return std::vector<MemorySpan>{{reinterpret_cast<std::byte*>(address), bytes, nullptr}};
  std::lock_guard lock(mutex_);
  std::vector<MemorySpan> result;
  uint64_t done = 0;
  do {
    auto range = range_at(address + done);
    if (range == nullptr) return std::nullopt;
    // Allocations that happen to be neighbours are still separate; mappings are not.
    if (done != 0 && range->kind != MemoryKind::mapped) return std::nullopt;
    if (range->kind == MemoryKind::mapped && !any_access(range->base)) return std::nullopt;
    uint64_t offset = address + done - range->base;
    uint64_t piece = std::min(bytes - done, range->bytes - offset);
    result.push_back({range->host + offset, piece, range});
    done += piece;
  } while (done < bytes);
  return result;
}

}  // namespace fargpu::softgpu
