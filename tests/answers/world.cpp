#include "world.h"

#include <algorithm>
#include <cstdlib>

namespace answers {

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::string call(what);
    throw NoFixture(call.substr(0, call.find('(')) + " gives " + std::to_string(result));
  }
}

Slot World::make(std::string_view fixture, std::size_t bytes) {
  Slot slot;
  const std::string name_text(fixture);
  if (fixture == "none") return slot;
  if (fixture == "out") {
    slot.put(memory(std::max(bytes, out_bytes_min), untouched_byte));
    return slot;
  }
  char* end = nullptr;
  const long long number = std::strtoll(name_text.c_str(), &end, 0);
  if (end != name_text.c_str() && *end == 0) {
    slot.put(number);
    return slot;
  }
  const auto found = made_.find(name_text);
  if (found != made_.end()) return found->second;
  slot = make_another(fixture);
  made_.emplace(name_text, slot);
  return slot;
}

Slot World::make_another(std::string_view fixture) {
  const Maker maker = maker_of(fixture);
  if (!maker) throw std::logic_error("calls.toml names no fixture: " + std::string(fixture));
  const Slot slot = maker(*this);
  // Values that may be numbers are no names.
  if (slot.word() > 0xffff && !bytes_at(slot.get<void*>())) name(slot.word(), fixture);
  return slot;
}

unsigned char* World::memory(std::size_t bytes, unsigned char fill) {
  std::vector<unsigned char>& made = memory_.emplace_back(bytes, fill);
  regions_.emplace(made.data(), bytes);
  return made.data();
}

std::size_t World::bytes_at(const void* address) const {
  const auto found = regions_.find(address);
  return found == regions_.end() ? 0 : found->second;
}

void World::name(std::uint64_t value, std::string_view name, std::uint64_t bytes) {
  names_.emplace(value, Named{std::string(name), bytes});
}

std::string World::name_of(std::uint64_t value) const {
  auto after = names_.upper_bound(value);
  if (after == names_.begin()) return {};
  const auto& [begin, named] = *--after;
  if (value - begin >= named.bytes) return {};
  return value == begin ? named.name : named.name + "+" + std::to_string(value - begin);
}

void World::end() {
  while (!endings_.empty()) {
    const std::function<void()> ending = std::move(endings_.back());
    endings_.pop_back();
    ending();
  }
}

}  // namespace answers
