#pragma once
// What is known of the driver API's functions: the table that table.py makes of CUDA's headers, codegen/spec and
// calls.toml. Everything else in this folder interprets it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace answers {

/// A place for an argument of any type, structs that are given by value among them.
struct Slot {
  alignas(16) unsigned char bytes[64] = {};

  template <class T>
  void put(const T& value) {
    static_assert(sizeof(T) <= sizeof bytes);
    std::memset(bytes, 0, sizeof bytes);
    std::memcpy(bytes, &value, sizeof value);
  }
  template <class T>
  T get() const {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint64_t word() const { return get<std::uint64_t>(); }
};

/// What a value is, and so how it is made wrong and how it is printed.
enum class Role : std::uint8_t {
  handle,    ///< an opaque object
  address,   ///< of device memory
  device,    ///< an ordinal
  integer,   ///< a number
  size,      ///< a number of bytes or of things
  flags,     ///< bits
  choice,    ///< an enumeration
  real,      ///< a floating-point number
  text,      ///< a string that is given
  function,  ///< of the program
  pointer,   ///< to memory of the program, of whatever it holds
  record,    ///< a struct by value
  other,     ///< bytes
};

/// A field of a struct, nested ones too.
struct Field {
  const char* name;
  Role role;
  bool is_signed;
  std::uint32_t offset;
  std::uint32_t bytes;
  const std::int64_t* choices;
  std::uint32_t choice_count;
};

struct Parameter {
  const char* name;
  Role role;
  bool is_signed;
  std::uint32_t bytes;          ///< of the argument
  const std::int64_t* choices;  ///< of an enumeration
  std::uint32_t choice_count;
  Role element;  ///< of a pointer: what lies there
  bool element_signed;
  std::uint32_t element_bytes;  ///< 0 where the type does not say
  const Field* fields;          ///< of a struct that lies there
  std::uint32_t field_count;
  const char* fixture;  ///< what is given in a call that is right
  bool masked;          ///< what comes back differs from run to run, or from machine to machine
  bool kept;            ///< is not made wrong
};

struct Call {
  const char* symbol;
  const char* group;
  const Parameter* parameters;
  std::uint32_t count;
  const char* const* more;    ///< further right calls: "parameter=fixture", ended by null
  const char* const* masked;  ///< cases of which all outputs differ from run to run, ended by null
  bool twin;                  ///< the per-thread form of another symbol, of which only right calls are made
  bool ends;                  ///< what it is given is gone when it succeeds
  bool alone;                 ///< changes what later calls answer, or takes other symbols' cases along when it breaks
  int (*run)(void* function, const Slot* slots);
};

/// Calls a function of any type with arguments from slots.
template <class Function>
struct Invoke;
template <class... Arguments>
struct Invoke<int (*)(Arguments...)> {
  static int run(void* function, const Slot* slots) {
    return apply(function, slots, std::index_sequence_for<Arguments...>{});
  }
  template <std::size_t... Index>
  static int apply(void* function, [[maybe_unused]] const Slot* slots, std::index_sequence<Index...>) {
    return reinterpret_cast<int (*)(Arguments...)>(function)(slots[Index].get<Arguments>()...);
  }
};
template <class Result, class... Arguments>
struct Invoke<Result (*)(Arguments...)> : Invoke<int (*)(Arguments...)> {};

extern const Call calls[];
extern const std::size_t call_count;

}  // namespace answers
