#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "memory/physical_memory.h"

namespace fargpu::softgpu {

class Context;
class MemoryPool;

/// One software GPU.
class Device {
 public:
  Device(int ordinal, int hardware_number, int multiprocessor_count, std::shared_ptr<MemoryAccount> account);

  int ordinal() const { return ordinal_; }
  int hardware_number() const { return hardware_number_; }
  int multiprocessor_count() const { return multiprocessor_count_; }
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  CUuuid uuid() const;
  std::string pci_bus_id() const;

  /// The value of an attribute; throws INVALID_VALUE for one that does not exist.
  int attribute(CUdevice_attribute attribute) const;

  /// The primary context has the same handle for as long as the process lives, active or not.
  const std::shared_ptr<Context>& primary_context() const { return primary_context_; }
  void make_primary_context();

  // ---- errors that kernels leave behind: of all contexts of the process, and none can be made any more, as on NVIDIA

  /// Throws the error.
  void check() const;
  bool has_failed() const { return error_ != CUDA_SUCCESS; }
  /// The first error stays until the process ends; false if there was one.
  bool fail(CUresult error);

  // ---- memory that kernels may still be using ----------------------------------------------------------------------

  uint64_t begin_grid();
  void end_grid(uint64_t grid_id);
  /// Keeps an object until all grids that run now have ended.
  void retire(std::shared_ptr<const void> object);

  // ---- memory pools ------------------------------------------------------------------------------------------------

  std::mutex pool_mutex;
  CUmemoryPool default_pool = nullptr;
  CUmemoryPool current_pool = nullptr;

 private:
  struct Retired {
    std::shared_ptr<const void> object;
    std::set<uint64_t> grids;
  };

  const int ordinal_;
  const int hardware_number_;
  const int multiprocessor_count_;
  std::shared_ptr<MemoryAccount> account_;
  std::shared_ptr<Context> primary_context_;
  std::atomic<CUresult> error_{CUDA_SUCCESS};

  std::mutex grids_mutex_;
  uint64_t next_grid_id_ = 1;
  std::set<uint64_t> running_grids_;
  std::vector<Retired> retired_;
};

}  // namespace fargpu::softgpu
