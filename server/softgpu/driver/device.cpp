#include "driver/device.h"

#include <cstdio>
#include <cstring>

#include "driver/context.h"
#include "driver/failure.h"

namespace fargpu::softgpu {

Device::Device(int ordinal, int hardware_number, int multiprocessor_count, std::shared_ptr<MemoryAccount> account)
    : ordinal_(ordinal),
      hardware_number_(hardware_number),
      multiprocessor_count_(multiprocessor_count),
      account_(std::move(account)) {}

void Device::make_primary_context() {
  primary_context_ = std::make_shared<Context>(*this, /*is_primary=*/true);
  ContextTable::instance().add(primary_context_);
}

CUuuid Device::uuid() const {
  // Every process has the same, and each device another.
  CUuuid uuid = {};
  constexpr char prefix[] = "fargpu-softgpu";
  static_assert(sizeof prefix - 1 < sizeof uuid.bytes - 1);
  std::memcpy(uuid.bytes, prefix, sizeof prefix - 1);
  uuid.bytes[15] = static_cast<char>(hardware_number_);
  return uuid;
}

std::string Device::pci_bus_id() const {
  char text[16];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", hardware_number_ + 1);
  return text;
}

void Device::check() const {
  if (CUresult error = error_; error != CUDA_SUCCESS) throw Failure(error);
}

bool Device::fail(CUresult error) {
  CUresult none = CUDA_SUCCESS;
  return error_.compare_exchange_strong(none, error);
}

uint64_t Device::begin_grid() {
  std::lock_guard lock(grids_mutex_);
  running_grids_.insert(next_grid_id_);
  return next_grid_id_++;
}

void Device::end_grid(uint64_t grid_id) {
  std::vector<Retired> released;  // destroyed outside the lock
  std::lock_guard lock(grids_mutex_);
  running_grids_.erase(grid_id);
  for (auto it = retired_.begin(); it != retired_.end();) {
    it->grids.erase(grid_id);
    if (it->grids.empty()) {
      released.push_back(std::move(*it));
      it = retired_.erase(it);
    } else {
      ++it;
    }
  }
}

void Device::retire(std::shared_ptr<const void> object) {
  std::lock_guard lock(grids_mutex_);
  if (!running_grids_.empty()) retired_.push_back({std::move(object), running_grids_});
}

}  // namespace fargpu::softgpu
