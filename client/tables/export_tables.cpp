#include "export_tables.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/base/config.h"
#include "client/api/entry.h"
#include "client/base/log.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "protocol/integrity.h"

namespace fargpu::client {
namespace {

using Word = const void*;

template <class F>
Word slot(F* function) {
  return reinterpret_cast<Word>(function);
}

Word size_word(std::size_t bytes) { return reinterpret_cast<Word>(bytes); }

// A slot whose meaning is not known: says so once, with the first arguments, and answers an error that its callers treat as "not
// there".
template <int table, int index>
CUresult unknown_slot(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  constexpr const char* names[] = {
      "cudart interface", "tools TLS", "runtime callback hooks", "context checks", "context identity", "functions and modules",
      "device topology",  "relay"};
  try {
    const std::string where = fmt::format("slot {} of the private table '{}'", index, names[table]);
    log::write_once(
        log::Level::warn, where,
        fmt::format("{} is not served (arguments {:#x} {:#x} {:#x} {:#x}); the caller gets CUDA_ERROR_NOT_SUPPORTED", where, a, b, c, d));
  } catch (...) {}
  return CUDA_ERROR_NOT_SUPPORTED;
}

// `words` slots, all unknown, with the size in front where `sized`.
template <int table, std::size_t words, std::size_t... i>
constexpr std::array<Word, words> unknown_table(std::index_sequence<i...>) {
  return {reinterpret_cast<Word>(&unknown_slot<table, static_cast<int>(i)>)...};
}
template <int table, std::size_t words>
std::array<Word, words> sized_table() {
  auto made = unknown_table<table, words>(std::make_index_sequence<words>{});
  made[0] = size_word(words * sizeof(Word));
  return made;
}

// The calling thread, if calls are served now.
template <class Body>
CUresult serve(Body&& body) noexcept {
  if (process().life() != Life::ready) return process().unavailable();
  try {
    return body(Thread::current());
  } catch (...) {
    return result_of_exception(Symbol::cuGetExportTable);
  }
}

// --- 6bd5fb6c: the runtime's own interface ----------------------------------------------------------------------------------------

// Slot 2: the primary context's handle, which is not retained or created by this.
CUresult primary_context(CUcontext* out, CUdevice device) {
  return serve([&](Thread& thread) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!thread.session().facts().device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = thread.session().primary(device).cuda();
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
void nothing_to_do(std::size_t) {}
// Slot 12: have the compilers loaded. They live on the GPU host.
CUresult load_compilers() { return CUDA_SUCCESS; }

// --- 42d85a81: thread state for tools ------------------------------------------------------------------------------------------------

CUresult thread_context(CUcontext* out) {
  return serve([&](Thread& thread) { return hand::cuCtxGetCurrent(thread, out); });
}

// --- a094798c: callback hooks of tools -------------------------------------------------------------------------------------------------

// Flags "a tool listens to runtime callback n": nobody does. Sizes as the driver's.
void callback_flags(void** buffer, std::size_t* bytes) {
  static std::array<std::uint8_t, 1024> flags{};
  *buffer = flags.data();
  *bytes = flags.size();
}
void domain_flags(void** buffer, std::size_t* bytes) {
  static std::array<std::uint8_t, 14> flags{};
  *buffer = flags.data();
  *bytes = flags.size();
}
CUresult ignore_event(std::uint64_t, void*) { return CUDA_SUCCESS; }
CUresult tool_state(const void* in, std::uint64_t* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!in) *out = 0;
  return CUDA_SUCCESS;
}
CUresult nothing_to_tell() { return CUDA_SUCCESS; }

// --- c693336e: values of libraries, by context and key -----------------------------------------------------------------------------------

// Null and -1 mean the calling thread's current context.
Context* storage_context(Thread& thread, CUcontext context) {
  if (!context || context == reinterpret_cast<CUcontext>(~std::uintptr_t{0})) return thread.context();
  return thread.session().find_context(context);
}

CUresult storage_put(CUcontext ctx, void* key, void* value, ContextLocalStorage::Destructor destructor) {
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

// --- 263e8860: checks of contexts ---------------------------------------------------------------------------------------------------------

// Slot 2: whether a tool has wrapped the context. The second output must stay as it is.
CUresult check_wrapped(CUcontext, std::uint32_t* wrapped, void**) {
  if (wrapped) *wrapped = 0;
  return CUDA_SUCCESS;
}
std::uint32_t no_checks() { return 0; }

// --- d4082055: integrity check ------------------------------------------------------------------------------------------------------------

CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result);
CUresult integrity_flag(bool) { return CUDA_SUCCESS; }

// --- 21318c60: identities -----------------------------------------------------------------------------------------------------------------

CUresult context_number(CUcontext ctx, std::uint64_t* id) {
  return serve([&](Thread& thread) {
    unsigned long long number = 0;
    const CUresult result = hand::cuCtxGetId(thread, ctx, &number);
    if (result == CUDA_SUCCESS && id) *id = number;
    return id ? result : CUDA_ERROR_INVALID_VALUE;
  });
}

// Slot 51: the object behind a stream; slot 39: its number, that of cuStreamGetId. Callers pass the object on without looking into
// it.
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

// --- 6e163fbe: functions and modules --------------------------------------------------------------------------------------------------------

// Slot 7: calls back for each function of a module; returns how many there are.
std::uint64_t each_function(CUcontext, CUmodule module, void (*visit)(void*, CUfunction), void* user) {
  std::uint64_t count = 0;
  serve([&](Thread& thread) {
    if (!visit) return CUDA_ERROR_INVALID_VALUE;
    unsigned n = 0;
    if (const CUresult bad = ::cuModuleGetFunctionCount(&n, module); bad != CUDA_SUCCESS) return bad;
    std::vector<CUfunction> functions(n);
    if (n > 0) {
      if (const CUresult bad = hand::cuModuleEnumerateFunctions(thread, functions.data(), n, module); bad != CUDA_SUCCESS) return bad;
    }
    for (const CUfunction function : functions) visit(user, function);
    count = n;
    return CUDA_SUCCESS;
  });
  return count;
}

// --- 1734dc26: topology of the device ----------------------------------------------------------------------------------------------------

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

// --- f8cff951: messages of libraries ---------------------------------------------------------------------------------------------------------

CUresult library_message(const char* domain, int severity, const char* format, va_list arguments) {
  try {
    if (!format) return CUDA_SUCCESS;
    char text[1024];
    std::vsnprintf(text, sizeof(text), format, arguments);
    log::info("{} (severity {}): {}", domain ? domain : "library", severity, text);
  } catch (...) {}
  return CUDA_SUCCESS;
}

// --- the tables ------------------------------------------------------------------------------------------------------------------------------

struct Tables {
  std::array<Word, 13> cudart = sized_table<0, 13>();
  std::array<Word, 3> tools = sized_table<1, 3>();
  std::array<Word, 7> hooks = sized_table<2, 7>();
  std::array<Word, 4> storage{slot(storage_put), slot(storage_remove), slot(storage_get), nullptr};
  std::array<Word, 15> checks = sized_table<3, 15>();
  std::array<Word, 3> integrity{size_word(3 * sizeof(Word)), slot(check_integrity), slot(integrity_flag)};
  std::array<Word, 93> identity = sized_table<4, 93>();
  std::array<Word, 99> functions = sized_table<5, 99>();
  std::array<Word, 17> topology = sized_table<6, 17>();
  // Several small tables in a row, each with its own size.
  std::array<Word, 37> relay = sized_table<7, 37>();

  Tables() {
    cudart[1] = slot(module_of_wrapper);
    cudart[2] = slot(primary_context);
    cudart[6] = slot(module_of_wrapper_extended);
    cudart[7] = slot(nothing_to_do);
    cudart[8] = slot(module_of_container);
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
    identity[4] = slot(context_number);
    identity[39] = slot(stream_number);
    identity[51] = slot(stream_object);
    functions[7] = slot(each_function);
    topology[4] = slot(processors);
    topology[13] = slot(free_processors);
    relay[0] = size_word(3 * sizeof(Word));
    relay[1] = slot(library_message);
    relay[3] = nullptr;
    relay[4] = size_word(2 * sizeof(Word));
    relay[6] = size_word(4 * sizeof(Word));
    relay[10] = size_word(2 * sizeof(Word));
    relay[12] = relay[13] = nullptr;
    relay[14] = size_word(7 * sizeof(Word));
    relay[21] = nullptr;
    relay[22] = size_word(15 * sizeof(Word));
  }
};

const Tables& tables() {
  static const Tables* const instance = new Tables;
  return *instance;
}

CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result) {
  if (!result) return CUDA_ERROR_INVALID_VALUE;
  try {
    IntegrityQuestion question;
    question.driver_version = static_cast<std::uint32_t>(config().driver_version);
    question.version = version;
    question.process_id = static_cast<std::uint32_t>(::getpid());
    question.thread = static_cast<std::uint32_t>(::pthread_self());
    question.cudart_table = reinterpret_cast<std::uint64_t>(tables().cudart.data());
    question.integrity_table = reinterpret_cast<std::uint64_t>(tables().integrity.data());
    question.function = reinterpret_cast<std::uint64_t>(tables().integrity[1]);
    question.unix_seconds = unix_seconds;
    if (Session* const session = process().session()) {
      for (const Device& device : session->facts().devices) {
        IntegrityDevice& known = question.devices.emplace_back();
        std::memcpy(known.uuid.data(), &device.uuid, known.uuid.size());
        known.pci_domain = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
        known.pci_bus = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
        known.pci_device = device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
      }
    }
    const auto answer = integrity_answer(question);
    result[0] = answer[0];
    result[1] = answer[1];
    return CUDA_SUCCESS;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

struct Known {
  std::array<std::uint8_t, 16> id;
  const void* table;
};

// By which tools are called back at each driver call: the first thing that CUPTI, and with it every profiler, asks for when it starts.
constexpr std::array<std::uint8_t, 16> tools_subscription = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                                             0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};

}  // namespace

const void* export_table(const CUuuid& id) {
  static const Known known[] = {
      {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, tables().cudart.data()},
      {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, tables().tools.data()},
      {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, tables().hooks.data()},
      {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, tables().storage.data()},
      {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, tables().checks.data()},
      {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, tables().integrity.data()},
      {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, tables().identity.data()},
      {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}, tables().functions.data()},
      {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}, tables().topology.data()},
      {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9}, tables().relay.data()},
  };
  for (const Known& entry : known)
    if (std::memcmp(entry.id.data(), id.bytes, entry.id.size()) == 0) return entry.table;
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
