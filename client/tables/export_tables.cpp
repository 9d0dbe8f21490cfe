#include "export_tables.h"

#include <fmt/format.h>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/base/config.h"
#include "client/base/uuid.h"
#include "client/session/pool.h"
#include "hosts_table.h"
#include "memory_table.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/base/log.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "protocol/private_tables.h"

namespace fargpu::client {
namespace {

using private_tables::size_word;
using private_tables::slot;
using private_tables::Table;
using private_tables::Word;

// A slot whose meaning is not known: says so once, with the first arguments, and answers an error that its callers
// treat as "not there".
template <Table table, std::size_t index>
CUresult unknown_slot(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  try {
    const std::string where = fmt::format("slot {} of the private table '{}'", index, private_tables::name_of(table));
    log::write_once(
        log::Level::warn, where,
        fmt::format("{} is not served (arguments {:#x} {:#x} {:#x} {:#x}); the caller gets CUDA_ERROR_NOT_SUPPORTED",
                    where, a, b, c, d));
  } catch (...) {}
  return CUDA_ERROR_NOT_SUPPORTED;
}

constexpr auto unknown = []<Table table, std::size_t index>() { return slot(&unknown_slot<table, index>); };

// The calling thread, if calls are served now.
template <class Body>
CUresult serve(Body&& body) noexcept {
  if (!serving()) return unavailable();
  try {
    return body(Thread::current());
  } catch (...) {
    return result_of_exception(Symbol::cuGetExportTable);
  }
}

// --- 6bd5fb6c: the runtime's own interface --------------------------------------------------------------------------

// Slot 2: the primary context's handle, which is not retained or created by this.
CUresult primary_context(CUcontext* out, CUdevice device) {
  return serve([&](Thread&) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!process().facts().device(device)) return CUDA_ERROR_INVALID_DEVICE;
    // The runtime asks this of every device, and to ask is not to use: no session begins.
    const Pool* const pool = process().pool();
    *out = pool ? pool->primary_context(device) : process().session()->contexts.primary(device).cuda();
    return CUDA_SUCCESS;
  });
}

// Slots 1, 6 and 8 load fatbins for runtimes older than 12.
CUresult module_of_wrapper(CUmodule* out, const void* wrapper) {
  return serve([&](Thread& thread) { return hand::cuModuleLoadDataEx(thread, out, wrapper, 0, nullptr, nullptr); });
}
CUresult module_of_wrapper_extended(CUmodule* out, const void* wrapper, void* a, void* b, unsigned c) {
  if (a || b || c) return CUDA_ERROR_NOT_SUPPORTED;
  return module_of_wrapper(out, wrapper);
}
CUresult module_of_container(const void* container, CUmodule* out, void* a, void* b, unsigned c) {
  if (a || b || c) return CUDA_ERROR_NOT_SUPPORTED;
  return serve([&](Thread& thread) { return hand::cuModuleLoadDataEx(thread, out, container, 0, nullptr, nullptr); });
}

// --- 42d85a81: thread state for tools -------------------------------------------------------------------------------

CUresult thread_context(CUcontext* out) {
  return serve([&](Thread& thread) { return hand::cuCtxGetCurrent(thread, out); });
}

// --- c693336e: values of libraries, by context and key --------------------------------------------------------------

// Null and -1 mean the calling thread's current context.
Context* storage_context(Thread& thread, CUcontext context) {
  if (!context || context == reinterpret_cast<CUcontext>(~std::uintptr_t{0})) return thread.context();
  return process().find_context(context);
}

CUresult storage_put(CUcontext ctx, void* key, void* value, ContextStorage::Destructor destructor) {
  return serve([&](Thread& thread) {
    Context* const context = storage_context(thread, ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context->storage.put(key, value, destructor);
    return CUDA_SUCCESS;
  });
}
CUresult storage_remove(CUcontext ctx, void* key) {
  return serve([&](Thread& thread) {
    Context* const context = storage_context(thread, ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return context->storage.remove(key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}
CUresult storage_get(void** value, CUcontext ctx, void* key) {
  return serve([&](Thread& thread) {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    Context* const context = storage_context(thread, ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return context->storage.get(key, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

// --- d4082055: integrity check --------------------------------------------------------------------------------------

CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result);

// --- 21318c60: identities -------------------------------------------------------------------------------------------

CUresult context_number(CUcontext ctx, std::uint64_t* id) {
  return serve([&](Thread& thread) {
    unsigned long long number = 0;
    const CUresult result = hand::cuCtxGetId(thread, ctx, &number);
    if (result == CUDA_SUCCESS && id) *id = number;
    return id ? result : CUDA_ERROR_INVALID_VALUE;
  });
}

// Slot 51: the object behind a stream; slot 39: its number, that of cuStreamGetId. Callers pass the object on without
// looking into it.
CUresult stream_object(CUcontext ctx, CUstream stream, void** object, int per_thread) {
  return serve([&](Thread& thread) {
    if (!object) return CUDA_ERROR_INVALID_VALUE;
    if (stream == reinterpret_cast<CUstream>(~std::uintptr_t{0})) return CUDA_ERROR_INVALID_HANDLE;
    Context* const context = storage_context(thread, ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    const StreamUse use(thread, per_thread ? own_default(stream) : stream, context);
    if (!use) return use.error();
    *object = &*use;
    return CUDA_SUCCESS;
  });
}
CUresult stream_number(CUcontext, const Stream* object, std::uint64_t* id) {
  return serve([&](Thread&) {
    if (!object || !id) return CUDA_ERROR_INVALID_VALUE;
    *id = object->id;
    return CUDA_SUCCESS;
  });
}

// --- 6e163fbe: functions and modules --------------------------------------------------------------------------------

// Slot 7: calls back for each function of a module; returns how many there are.
std::uint64_t each_function(CUcontext, CUmodule module, void (*visit)(void*, CUfunction), void* user) {
  std::uint64_t count = 0;
  serve([&](Thread& thread) {
    if (!visit) return CUDA_ERROR_INVALID_VALUE;
    unsigned n = 0;
    if (const CUresult bad = ::cuModuleGetFunctionCount(&n, module); bad != CUDA_SUCCESS) return bad;
    std::vector<CUfunction> functions(n);
    if (n > 0) {
      if (const CUresult bad = hand::cuModuleEnumerateFunctions(thread, functions.data(), n, module);
          bad != CUDA_SUCCESS)
        return bad;
    }
    for (const CUfunction function : functions) visit(user, function);
    count = n;
    return CUDA_SUCCESS;
  });
  return count;
}

// --- 1734dc26: topology of the device -------------------------------------------------------------------------------

// Slots 4 and 13: per TPC, the GPC it belongs to and its number there, in memory that the caller gives back.
std::uint8_t* copy_of(const std::vector<std::uint8_t>& bytes) {
  auto* const copy = static_cast<std::uint8_t*>(std::malloc(bytes.size()));
  if (copy) std::memcpy(copy, bytes.data(), bytes.size());
  return copy;
}
CUresult processors(std::uint8_t** group, std::uint8_t** index) {
  return serve([&](Thread& thread) {
    if (!group || !index) return CUDA_ERROR_INVALID_VALUE;
    const Context* const context = thread.context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    // Without the facts the outputs stay null, with which cuBLASLt makes a plainer choice.
    *group = *index = nullptr;
    if (context->processor_group.empty()) return CUDA_SUCCESS;
    *group = copy_of(context->processor_group);
    *index = copy_of(context->processor_index);
    return CUDA_SUCCESS;
  });
}
CUresult free_processors(std::uint8_t* group, std::uint8_t* index) {
  std::free(group);
  std::free(index);
  return CUDA_SUCCESS;
}

// --- f8cff951: messages of libraries --------------------------------------------------------------------------------

CUresult library_message(const char* domain, int severity, const char* format, va_list arguments) {
  try {
    if (!format) return CUDA_SUCCESS;
    char text[1024];
    std::vsnprintf(text, sizeof(text), format, arguments);
    log::info("{} (severity {}): {}", domain ? domain : "library", severity, text);
  } catch (...) {}
  return CUDA_SUCCESS;
}

// --- the tables -----------------------------------------------------------------------------------------------------

struct Tables {
  private_tables::RuntimeTables runtime{{.primary_context = slot(primary_context),
                                         .thread_context = slot(thread_context),
                                         .storage_put = slot(storage_put),
                                         .storage_remove = slot(storage_remove),
                                         .storage_get = slot(storage_get),
                                         .check_integrity = slot(check_integrity)},
                                        unknown};
  std::array<Word, 93> identity = private_tables::sized_table<Table::identity, 93>(unknown);
  std::array<Word, 99> functions = private_tables::sized_table<Table::functions, 99>(unknown);
  std::array<Word, 17> topology = private_tables::sized_table<Table::topology, 17>(unknown);
  // Several small tables in a row, each with its own size.
  std::array<Word, 37> relay = private_tables::sized_table<Table::relay, 37>(unknown);

  Tables() {
    runtime.cudart[1] = slot(module_of_wrapper);
    runtime.cudart[6] = slot(module_of_wrapper_extended);
    runtime.cudart[8] = slot(module_of_container);
    identity[4] = slot(context_number);
    identity[39] = slot(stream_number);
    identity[51] = slot(stream_object);
    functions[7] = slot(each_function);
    topology[4] = slot(processors);
    topology[13] = slot(free_processors);
    relay[0] = size_word(3);
    relay[1] = slot(library_message);
    relay[3] = nullptr;
    relay[4] = size_word(2);
    relay[6] = size_word(4);
    relay[10] = size_word(2);
    relay[12] = relay[13] = nullptr;
    relay[14] = size_word(7);
    relay[21] = nullptr;
    relay[22] = size_word(15);
  }
};

const Tables& tables() {
  static const Tables* const instance = new Tables;
  return *instance;
}

CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result) {
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  try {
    std::vector<IntegrityDevice> devices;
    if (serving()) {
      for (const Device& device : process().facts().devices) {
        IntegrityDevice& known = devices.emplace_back();
        std::memcpy(known.uuid.data(), &device.uuid, known.uuid.size());
        known.pci_domain = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
        known.pci_bus = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
        known.pci_device = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
      }
    }
    const auto driver_version = static_cast<std::uint32_t>(config().driver_version);
    const auto answer = tables().runtime.integrity_answer(driver_version, version, unix_seconds, std::move(devices));
    result[0] = answer[0];
    result[1] = answer[1];
    return CUDA_SUCCESS;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

const void* words_of(Table table) {
  switch (table) {
    case Table::cudart: return tables().runtime.cudart.data();
    case Table::tools: return tables().runtime.tools.data();
    case Table::hooks: return tables().runtime.hooks.data();
    case Table::storage: return tables().runtime.storage.data();
    case Table::checks: return tables().runtime.checks.data();
    case Table::integrity: return tables().runtime.integrity.data();
    case Table::identity: return tables().identity.data();
    case Table::functions: return tables().functions.data();
    case Table::topology: return tables().topology.data();
    case Table::relay: return tables().relay.data();
  }
  return nullptr;
}

// By which tools are called back at each driver call: the first thing that CUPTI, and with it every profiler, asks for
// when it starts.
constexpr std::array<std::uint8_t, 16> tools_subscription = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                                             0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};

CUresult host_of(CUdevice device, unsigned* host, unsigned* devices) {
  return serve([&](Thread&) {
    const Pool* const pool = process().pool();
    if (!pool) return CUDA_ERROR_NOT_FOUND;
    if (!host || !devices) return CUDA_ERROR_INVALID_VALUE;
    const auto number = pool->host_of(device);
    if (!number) return CUDA_ERROR_INVALID_DEVICE;
    *host = *number;
    *devices = 0;
    for (CUdevice other = 0; pool->facts().device(other); ++other) *devices += pool->host_of(other) == number;
    return CUDA_SUCCESS;
  });
}

CUresult kept_bytes(const char* uuid, std::uint64_t* bytes) {
  return serve([&](Thread&) {
    if (!uuid || !bytes) return CUDA_ERROR_INVALID_VALUE;
    const Pool* const pool = process().pool();
    const Facts& facts = process().facts();
    for (CUdevice device = 0; facts.device(device); ++device) {
      if (uuid_text(facts.device(device)->uuid) != uuid) continue;
      const Session* const session = pool ? pool->begun_of(device) : process().session();
      *bytes = session ? session->device_memory.kept_bytes(device) : 0;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

}  // namespace

const void* export_table(const CUuuid& id) {
  if (std::memcmp(&id, &hosts_table_id, sizeof id) == 0) {
    static const HostsTable table{.host_of = host_of};
    return &table;
  }
  if (std::memcmp(&id, &memory_table_id, sizeof id) == 0) {
    static const MemoryTable table{.kept_bytes = kept_bytes};
    return &table;
  }
  if (const auto table = private_tables::table_of(id)) return words_of(*table);
  if (std::memcmp(tools_subscription.data(), id.bytes, tools_subscription.size()) == 0) {
    log::write_once(log::Level::warn, "tools",
                    "profiling of the GPU (CUPTI) is not served: the profiler sees the CPU only; the program goes on");
    return nullptr;
  }
  std::string text;
  for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  log::write_once(log::Level::info, text, fmt::format("the private table {} is not served", text));
  return nullptr;
}

}  // namespace fargpu::client
