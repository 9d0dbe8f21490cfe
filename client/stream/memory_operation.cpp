#include "memory_operation.h"

#include <type_traits>

namespace fargpu::client {
namespace {

template <class Word>
bool holds(unsigned flags, Word now, Word value) {
  switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_EQ: return now == value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR: return static_cast<Word>(~(now | value)) != 0;
    default:  // cyclic: numbers that have wrapped around are greater
      return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
  }
}

template <class Word>
Word load(std::uint64_t address) {
  return __atomic_load_n(reinterpret_cast<const Word*>(address), __ATOMIC_ACQUIRE);
}

template <class Word>
void store(std::uint64_t address, std::uint64_t value) {
  __atomic_store_n(reinterpret_cast<Word*>(address), static_cast<Word>(value), __ATOMIC_RELEASE);
}

}  // namespace

bool MemoryOperation::satisfied() const {
  return wide() ? holds<std::uint64_t>(flags, load<std::uint64_t>(address), value)
                : holds<std::uint32_t>(flags, load<std::uint32_t>(address), static_cast<std::uint32_t>(value));
}

void MemoryOperation::write() const {
  if (wide()) store<std::uint64_t>(address, value);
  else store<std::uint32_t>(address, value);
}

void write_operation(const MemoryOperation& operation, wire::MemoryOperation::Builder out) {
  out.setOperation(operation.type);
  out.setFlags(operation.flags);
  out.setAddress(operation.address);
  out.setValue(operation.value);
}

}  // namespace fargpu::client
