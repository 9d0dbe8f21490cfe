#include "private_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace fargpu::private_tables {
namespace {

struct Entry {
  Table table;
  const char* name;
  std::array<std::uint8_t, 16> id;
};

constexpr Entry entries[] = {
    {Table::cudart,
     "cudart interface",
     {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}},
    {Table::tools,
     "tools TLS",
     {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}},
    {Table::hooks,
     "runtime callback hooks",
     {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}},
    {Table::storage,
     "values by context",
     {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}},
    {Table::checks,
     "context checks",
     {0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}},
    {Table::integrity,
     "integrity check",
     {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}},
    {Table::identity,
     "context identity",
     {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}},
    {Table::functions,
     "functions and modules",
     {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}},
    {Table::topology,
     "device topology",
     {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}},
    {Table::relay,
     "relay",
     {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9}},
};

}  // namespace

std::optional<Table> table_of(const CUuuid& id) {
  for (const Entry& entry : entries)
    if (std::memcmp(entry.id.data(), id.bytes, entry.id.size()) == 0) return entry.table;
  return std::nullopt;
}

const char* name_of(Table table) {
  return std::find_if(std::begin(entries), std::end(entries), [&](const Entry& entry) { return entry.table == table; })
      ->name;
}

// --- 6bd5fb6c: the runtime's own interface --------------------------------------------------------------------------

void nothing_to_do(std::size_t) {}

// Slot 12: have the compilers loaded. They are not in this process.
CUresult load_compilers() { return CUDA_SUCCESS; }

// --- a094798c: callback hooks of tools, of which there are none -----------------------------------------------------

// Flags "a tool listens to runtime callback n": none does. Sizes as the driver's.
void callback_flags(void** flags, std::size_t* bytes) {
  static std::array<std::uint8_t, 1024> none{};
  *flags = none.data();
  *bytes = none.size();
}

void domain_flags(void** flags, std::size_t* bytes) {
  static std::array<std::uint8_t, 14> none{};
  *flags = none.data();
  *bytes = none.size();
}

CUresult ignore_event(std::uint64_t, void*) { return CUDA_SUCCESS; }

CUresult tool_state(const void* in, std::uint64_t* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!in) *out = 0;
  return CUDA_SUCCESS;
}

CUresult nothing_to_tell() { return CUDA_SUCCESS; }

// --- 263e8860: checks of contexts -----------------------------------------------------------------------------------

// Slot 2: whether a tool has wrapped the context. The second output must stay as it is.
CUresult check_wrapped(CUcontext, std::uint32_t* is_wrapped, void**) {
  if (is_wrapped) *is_wrapped = 0;
  return CUDA_SUCCESS;
}

std::uint32_t no_checks() { return 0; }

// --- d4082055: integrity check --------------------------------------------------------------------------------------

CUresult integrity_flag(bool) { return CUDA_SUCCESS; }

std::array<std::uint64_t, 2> RuntimeTables::integrity_answer(std::uint32_t driver_version, std::uint32_t version,
                                                             std::uint64_t unix_seconds,
                                                             std::vector<IntegrityDevice> devices) const {
  IntegrityQuestion question;
  question.driver_version = driver_version;
  question.version = version;
  question.process_id = static_cast<std::uint32_t>(::getpid());
  question.thread = static_cast<std::uint32_t>(::pthread_self());
  question.cudart_table = reinterpret_cast<std::uint64_t>(cudart.data());
  question.integrity_table = reinterpret_cast<std::uint64_t>(integrity.data());
  question.function = reinterpret_cast<std::uint64_t>(integrity[1]);
  question.unix_seconds = unix_seconds;
  question.devices = std::move(devices);
  return fargpu::integrity_answer(question);
}

}  // namespace fargpu::private_tables
