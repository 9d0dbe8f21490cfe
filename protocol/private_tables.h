#pragma once
// The private tables that CUDA's runtime asks every driver for (cuGetExportTable): their names and sizes, and the slots
// that are alike in the client library and in the software GPU. What the slots mean is told in client/tables/README.md.

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "integrity.h"

namespace fargpu::private_tables {

enum class Table { cudart, tools, hooks, storage, checks, integrity, identity, functions, topology, relay };

/// The table of this name; nothing for one that is not known.
std::optional<Table> table_of(const CUuuid& id);
/// For logs.
const char* name_of(Table table);

using Word = const void*;

template <class F>
Word slot(F* function) {
  return reinterpret_cast<Word>(function);
}
inline Word size_word(std::size_t words) { return reinterpret_cast<Word>(words * sizeof(Word)); }

/// A table that begins with its size. Each slot is `unknown.operator()<table, index>()`, until it is set to something
/// better.
template <Table table, std::size_t words, class Unknown>
std::array<Word, words> sized_table(Unknown unknown) {
  auto made = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<Word, words>{unknown.template operator()<table, i>()...};
  }
  (std::make_index_sequence<words>{});
  made[0] = size_word(words);
  return made;
}

/// Slots that a driver answers for itself.
struct DriverSlots {
  Word primary_context;  ///< CUresult(CUcontext*, CUdevice): the handle, which is neither retained nor created by this
  Word thread_context;   ///< CUresult(CUcontext*): the current one
  Word storage_put, storage_remove, storage_get;
  Word check_integrity;  ///< CUresult(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* result)
};

// Slots that are alike, each as its caller has it.
void nothing_to_do(std::size_t);
CUresult load_compilers();
void callback_flags(void** flags, std::size_t* bytes);
void domain_flags(void** flags, std::size_t* bytes);
CUresult ignore_event(std::uint64_t, void*);
CUresult tool_state(const void* in, std::uint64_t* out);
CUresult nothing_to_tell();
CUresult check_wrapped(CUcontext, std::uint32_t* is_wrapped, void**);
std::uint32_t no_checks();
CUresult integrity_flag(bool);

/// The tables without which no runtime starts.
struct RuntimeTables {
  template <class Unknown>
  RuntimeTables(const DriverSlots& driver, Unknown unknown)
      : cudart(sized_table<Table::cudart, 13>(unknown)),
        tools(sized_table<Table::tools, 3>(unknown)),
        hooks(sized_table<Table::hooks, 7>(unknown)),
        storage{driver.storage_put, driver.storage_remove, driver.storage_get, nullptr},
        checks(sized_table<Table::checks, 15>(unknown)),
        integrity{size_word(3), driver.check_integrity, slot(integrity_flag)} {
    cudart[2] = driver.primary_context;
    cudart[7] = slot(nothing_to_do);
    cudart[10] = nullptr;
    cudart[12] = slot(load_compilers);
    tools[2] = driver.thread_context;
    hooks[1] = slot(ignore_event);
    hooks[2] = slot(callback_flags);
    hooks[3] = slot(nothing_to_tell);
    hooks[4] = slot(tool_state);
    hooks[5] = slot(nothing_to_tell);
    hooks[6] = slot(domain_flags);
    checks[2] = slot(check_wrapped);
    checks[3] = slot(no_checks);
  }

  /// The two words that the runtime expects of slot 1 of the integrity table, when the calling thread asks.
  std::array<std::uint64_t, 2> integrity_answer(std::uint32_t driver_version, std::uint32_t version,
                                                std::uint64_t unix_seconds, std::vector<IntegrityDevice> devices) const;

  std::array<Word, 13> cudart;
  std::array<Word, 3> tools;
  std::array<Word, 7> hooks;
  std::array<Word, 4> storage;
  std::array<Word, 15> checks;
  std::array<Word, 3> integrity;
};

}  // namespace fargpu::private_tables
