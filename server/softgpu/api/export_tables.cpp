// The private tables that CUDA's runtime asks the driver for (cuGetExportTable), so that programs
// of the runtime find the software GPU directly. What the slots mean is told in
// client/tables/README.md; here are those that the runtime itself calls, none for libraries, whose
// kernels are machine code that cannot run here anyway.

#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/private_tables.h"
#include "common/limits.h"
#include "common/log.h"
#include "driver/context.h"

using namespace fargpu::softgpu;

namespace {

namespace private_tables = fargpu::private_tables;
using private_tables::slot;
using private_tables::Table;
using private_tables::Word;

template <Table table, size_t index>
CUresult unknown_slot() noexcept {
  return guarded([] {
    log_once("slot " + std::to_string(index) + " of the private table '" + private_tables::name_of(table) +
             "' is not supported by the software GPU");
    return CUDA_ERROR_NOT_SUPPORTED;
  });
}

constexpr auto unknown = []<Table table, size_t index>() { return slot(&unknown_slot<table, index>); };

// ---- 6bd5fb6c: the runtime's own interface -------------------------------------------------------------------------

/// The primary context's handle, which this neither retains nor creates.
CUresult primary_context(CUcontext* result, CUdevice device) {
  return entry([&] {
    require(result != nullptr);
    *result = Driver::get().device(device).primary_context()->handle();
  });
}

// ---- 42d85a81: thread state for tools ------------------------------------------------------------------------------

CUresult thread_context(CUcontext* result) { return cuCtxGetCurrent(result); }

// ---- c693336e: values of libraries, by context and key -------------------------------------------------------------

/// Null and -1 mean the current context.
std::shared_ptr<Context> storage_context(CUcontext handle) {
  if (handle == nullptr || handle == reinterpret_cast<CUcontext>(~uintptr_t{0})) return current_context();
  return ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
}

CUresult storage_put(CUcontext context, void* key, void* value, fargpu::ContextStorage::Destructor destructor) {
  return entry([&] { storage_context(context)->storage.put(key, value, destructor); });
}
CUresult storage_remove(CUcontext context, void* key) {
  return entry([&] { require(storage_context(context)->storage.remove(key), CUDA_ERROR_INVALID_HANDLE); });
}
CUresult storage_get(void** value, CUcontext context, void* key) {
  return entry([&] {
    require(value != nullptr);
    require(storage_context(context)->storage.get(key, value), CUDA_ERROR_INVALID_HANDLE);
  });
}

// ---- d4082055: integrity check -------------------------------------------------------------------------------------

CUresult check_integrity(uint32_t version, uint64_t unix_seconds, uint64_t* result);

// ---- f8cff951: messages of libraries -------------------------------------------------------------------------------

CUresult library_message() { return CUDA_SUCCESS; }

struct Tables {
  private_tables::RuntimeTables runtime{{.primary_context = slot(primary_context),
                                         .thread_context = slot(thread_context),
                                         .storage_put = slot(storage_put),
                                         .storage_remove = slot(storage_remove),
                                         .storage_get = slot(storage_get),
                                         .check_integrity = slot(check_integrity)},
                                        unknown};
  std::array<Word, 4> relay = private_tables::sized_table<Table::relay, 4>(unknown);

  Tables() {
    relay[0] = private_tables::size_word(3);
    relay[1] = slot(library_message);
    relay[3] = nullptr;
  }
};

const Tables& tables() {
  static const auto* instance = new Tables();
  return *instance;
}

CUresult check_integrity(uint32_t version, uint64_t unix_seconds, uint64_t* result) {
  return entry([&] {
    require(result != nullptr);
    std::vector<fargpu::IntegrityDevice> devices;
    for (int i = 0; i < Driver::get().device_count(); ++i) {
      const Device& device = Driver::get().device(i);
      fargpu::IntegrityDevice& known = devices.emplace_back();
      CUuuid uuid = device.uuid();
      std::memcpy(known.uuid.data(), &uuid, known.uuid.size());
      known.pci_domain = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
      known.pci_bus = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
      known.pci_device = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    }
    const auto answer = tables().runtime.integrity_answer(driver_version, version, unix_seconds, std::move(devices));
    result[0] = answer[0];
    result[1] = answer[1];
  });
}

/// Null for tables that only libraries ask for.
const void* words_of(Table table) {
  switch (table) {
    case Table::cudart: return tables().runtime.cudart.data();
    case Table::tools: return tables().runtime.tools.data();
    case Table::hooks: return tables().runtime.hooks.data();
    case Table::storage: return tables().runtime.storage.data();
    case Table::checks: return tables().runtime.checks.data();
    case Table::integrity: return tables().runtime.integrity.data();
    case Table::relay: return tables().relay.data();
    default: return nullptr;
  }
}

}  // namespace

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  return guarded([&] {
    require(table != nullptr);
    *table = nullptr;
    require(id != nullptr);
    if (const auto known = private_tables::table_of(*id)) *table = words_of(*known);
    require(*table != nullptr);
  });
}
