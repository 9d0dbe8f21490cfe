#include "proc_table.h"

#include <algorithm>

namespace fargpu::client {

ProcAnswer find_proc(std::string_view name, int version, bool per_thread) {
  const auto entries = proc_entries();
  const auto [begin, end] = std::equal_range(entries.begin(), entries.end(), ProcEntry{name, 0, false, nullptr},
                                             [](const ProcEntry& a, const ProcEntry& b) { return a.name < b.name; });
  ProcAnswer answer;
  if (begin == end) return answer;
  const bool has_twin = std::any_of(begin, end, [](const ProcEntry& e) { return e.per_thread; });
  answer.status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->per_thread != (per_thread && has_twin) || entry->since > version) continue;
    answer = {entry->function, CU_GET_PROC_ADDRESS_SUCCESS};  // versions ascend: the last one that fits is the newest
  }
  return answer;
}

}  // namespace fargpu::client
