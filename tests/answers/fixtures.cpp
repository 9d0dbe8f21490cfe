// The fixtures that calls.toml names: all topics together, and lists of numbers.

#include "fixtures.h"

namespace answers {

void add_numbers(Makers& makers) {
  makers.insert({
      {"one",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({1, 0}));
       }},
      {"sixty_four", [](World& w) { return slot_of(w.list<std::uint64_t>({64})); }},
      {"room_for_four", [](World& w) { return slot_of(w.list<std::uint64_t>({4})); }},
      {"zeros",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({0, 0}));
       }},
      {"fours",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({4, 4}));
       }},
      {"sizes",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({64, 64}));
       }},
      {"ones32",
       [](World& w) {
         return slot_of(w.list<unsigned>({1, 1, 1, 1, 1}));
       }},
      {"extents64",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({16, 4, 2, 1, 1}));
       }},
      {"strides64",
       [](World& w) {
         return slot_of(w.list<std::uint64_t>({64, 256, 512, 512, 512}));
       }},
      {"data_list",
       [](World& w) {
         return slot_of(w.list<void*>({w.memory(64, untouched_byte), w.memory(64, untouched_byte)}));
       }},
      {"pointer_attributes",
       [](World& w) {
         return slot_of(
             w.list<CUpointer_attribute>({CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL}));
       }},
      {"range_attributes",
       [](World& w) {
         return slot_of(w.list<CUmem_range_attribute>(
             {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION}));
       }},
  });
}

Maker maker_of(std::string_view fixture) {
  static const Makers makers = [] {
    Makers all;
    for (const auto add :
         {add_contexts, add_streams, add_code, add_memory, add_copies, add_arrays, add_graphs, add_numbers}) {
      add(all);
    }
    return all;
  }();
  const auto found = makers.find(fixture);
  return found == makers.end() ? nullptr : found->second;
}

CUcontext primary_context() {
  static const CUcontext made = [] {
    CUcontext context;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    return context;
  }();
  return made;
}

}  // namespace answers
