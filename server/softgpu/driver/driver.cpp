#include "driver/driver.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

#include "driver/failure.h"
#include "driver/shared_event.h"

namespace fargpu::softgpu {
namespace {

std::mutex initialize_mutex;
std::atomic<Driver*> the_driver{nullptr};
std::atomic<pid_t> driver_process{0};

}  // namespace

Driver::Driver() : configuration_(Configuration::from_environment()) {
  SharedEvent::sweep();
  std::shared_ptr<SharedUse> shared;
  if (!configuration_.shared_use.empty()) shared = SharedUse::open(configuration_.shared_use);
  std::vector<std::shared_ptr<MemoryAccount>> accounts;
  for (size_t i = 0; i < configuration_.visible.size(); ++i)
    accounts.push_back(std::make_shared<MemoryAccount>(configuration_.memory_bytes, shared, configuration_.visible[i]));
  addresses_ = std::make_unique<AddressSpace>(accounts);
  for (size_t i = 0; i < accounts.size(); ++i) {
    devices_.push_back(std::make_unique<Device>(static_cast<int>(i), configuration_.visible[i],
                                                configuration_.multiprocessor_count, accounts[i]));
    devices_.back()->make_primary_context();
  }
}

void Driver::initialize() {
  std::lock_guard lock(initialize_mutex);
  if (the_driver.load() != nullptr) {
    require(driver_process == getpid(), CUDA_ERROR_NOT_INITIALIZED);
    return;
  }
  static Driver* driver = new Driver();
  require(driver->device_count() != 0, CUDA_ERROR_NO_DEVICE);
  driver_process = getpid();
  the_driver = driver;
}

bool Driver::is_initialized() { return the_driver.load() != nullptr && driver_process == getpid(); }

Driver& Driver::get() {
  require(is_initialized(), CUDA_ERROR_NOT_INITIALIZED);
  return *the_driver.load();
}

Device& Driver::device(int ordinal) {
  require(ordinal >= 0 && ordinal < device_count(), CUDA_ERROR_INVALID_DEVICE);
  return *devices_[static_cast<size_t>(ordinal)];
}

}  // namespace fargpu::softgpu
