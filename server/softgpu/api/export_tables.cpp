// The private tables that CUDA's runtime asks the driver for (cuGetExportTable), so that programs
// of the runtime find the software GPU directly. What the slots mean is told in
// client/tables/README.md; here are those that the runtime itself calls, none for libraries, whose
// kernels are machine code that cannot run here anyway.

#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "protocol/integrity.h"
#include "common/limits.h"
#include "common/log.h"
#include "driver/context.h"

using namespace fargpu::softgpu;

namespace {

using Word = const void*;

template <class F>
Word slot(F* function) {
  return reinterpret_cast<Word>(function);
}

enum Table { cudart_table, tools_table, hooks_table, checks_table, relay_table };
constexpr const char* table_names[] = {"cudart interface", "tools TLS", "runtime callback hooks", "context checks", "relay"};

template <Table table, size_t index>
CUresult unknown_slot() noexcept {
  return guarded([] {
    log_once("slot " + std::to_string(index) + " of the private table '" + table_names[table] + "' is not supported by the software GPU");
    return CUDA_ERROR_NOT_SUPPORTED;
  });
}

/// A table that begins with its size, every other slot unknown.
template <Table table, size_t words>
std::array<Word, words> make_table() {
  auto made = []<size_t... i>(std::index_sequence<i...>) { return std::array<Word, words>{slot(&unknown_slot<table, i>)...}; }
  (std::make_index_sequence<words>());
  made[0] = reinterpret_cast<Word>(words * sizeof(Word));
  return made;
}

// ---- 6bd5fb6c: the runtime's own interface ----

/// The primary context's handle, which this neither retains nor creates.
CUresult primary_context(CUcontext* result, CUdevice device) {
  return entry([&] {
    require(result != nullptr);
    *result = Driver::get().device(device).primary_context()->handle();
  });
}

void nothing_to_do(size_t) {}
CUresult load_compilers() { return CUDA_SUCCESS; }

// ---- 42d85a81 and a094798c: tools, of which there are none ----

CUresult thread_context(CUcontext* result) { return cuCtxGetCurrent(result); }

/// "A tool listens to callback n" for each n.
void callback_flags(void** flags, size_t* bytes) {
  static std::array<uint8_t, 1024> none{};
  *flags = none.data();
  *bytes = none.size();
}
void domain_flags(void** flags, size_t* bytes) {
  static std::array<uint8_t, 14> none{};
  *flags = none.data();
  *bytes = none.size();
}
CUresult ignore_event(uint64_t, void*) { return CUDA_SUCCESS; }
CUresult tool_state(const void* in, uint64_t* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (in == nullptr) *out = 0;
  return CUDA_SUCCESS;
}
CUresult nothing_to_tell() { return CUDA_SUCCESS; }

// ---- c693336e: values of libraries, by context and key ----

/// Null and -1 mean the current context.
std::shared_ptr<Context> storage_context(CUcontext handle) {
  if (handle == nullptr || handle == reinterpret_cast<CUcontext>(~uintptr_t{0})) return current_context();
  return ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
}

CUresult storage_put(CUcontext context, void* key, void* value, LocalStorage::Destructor destructor) {
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

// ---- 263e8860: checks of contexts ----

/// Whether a tool has wrapped the context; the second output stays as it is.
CUresult check_wrapped(CUcontext, uint32_t* is_wrapped, void**) {
  if (is_wrapped != nullptr) *is_wrapped = 0;
  return CUDA_SUCCESS;
}
uint32_t no_checks() { return 0; }

// ---- d4082055: integrity check ----

CUresult check_integrity(uint32_t version, uint64_t unix_seconds, uint64_t* result);
CUresult integrity_flag(bool) { return CUDA_SUCCESS; }

// ---- f8cff951: messages of libraries ----

CUresult library_message() { return CUDA_SUCCESS; }

struct Tables {
  std::array<Word, 13> cudart = make_table<cudart_table, 13>();
  std::array<Word, 3> tools = make_table<tools_table, 3>();
  std::array<Word, 7> hooks = make_table<hooks_table, 7>();
  std::array<Word, 4> storage = {slot(storage_put), slot(storage_remove), slot(storage_get), nullptr};
  std::array<Word, 15> checks = make_table<checks_table, 15>();
  std::array<Word, 3> integrity = {reinterpret_cast<Word>(3 * sizeof(Word)), slot(check_integrity), slot(integrity_flag)};
  std::array<Word, 4> relay = make_table<relay_table, 4>();

  Tables() {
    cudart[2] = slot(primary_context);
    cudart[7] = slot(nothing_to_do);
    cudart[10] = nullptr;
    cudart[12] = slot(load_compilers);
    tools[2] = slot(thread_context);
    hooks[1] = slot(ignore_event);
    hooks[2] = slot(callback_flags);
    hooks[3] = slot(nothing_to_tell);
    hooks[4] = slot(tool_state);
    hooks[5] = slot(nothing_to_tell);
    hooks[6] = slot(domain_flags);
    checks[2] = slot(check_wrapped);
    checks[3] = slot(no_checks);
    relay[0] = reinterpret_cast<Word>(3 * sizeof(Word));
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
    fargpu::IntegrityQuestion question;
    question.driver_version = driver_version;
    question.version = version;
    question.process_id = static_cast<uint32_t>(getpid());
    question.thread = static_cast<uint32_t>(pthread_self());
    question.cudart_table = reinterpret_cast<uint64_t>(tables().cudart.data());
    question.integrity_table = reinterpret_cast<uint64_t>(tables().integrity.data());
    question.function = reinterpret_cast<uint64_t>(tables().integrity[1]);
    question.unix_seconds = unix_seconds;
    for (int i = 0; i < Driver::get().device_count(); ++i) {
      const Device& device = Driver::get().device(i);
      fargpu::IntegrityDevice& known = question.devices.emplace_back();
      CUuuid uuid = device.uuid();
      std::memcpy(known.uuid.data(), &uuid, known.uuid.size());
      known.pci_domain = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
      known.pci_bus = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
      known.pci_device = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    }
    auto answer = fargpu::integrity_answer(question);
    result[0] = answer[0];
    result[1] = answer[1];
  });
}

using Id = std::array<uint8_t, 16>;
struct Known {
  Id id;
  const void* table;
};

}  // namespace

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  return guarded([&] {
    require(table != nullptr);
    *table = nullptr;
    require(id != nullptr);
    static const Known known[] = {
        {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, tables().cudart.data()},
        {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, tables().tools.data()},
        {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, tables().hooks.data()},
        {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, tables().storage.data()},
        {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, tables().checks.data()},
        {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, tables().integrity.data()},
        {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9}, tables().relay.data()},
    };
    for (const Known& one : known)
      if (std::memcmp(one.id.data(), id->bytes, one.id.size()) == 0) *table = one.table;
    require(*table != nullptr);
  });
}
