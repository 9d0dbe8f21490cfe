#pragma once
// What a fuzz target gives: one function that takes any bytes at all, by libFuzzer's name for it, and inputs to begin
// with.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Must return, whatever it is given. What ends the process, or takes more than ten seconds of work, is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fargpu::fuzz {

using Input = std::vector<std::uint8_t>;

/// Inputs that what is fuzzed accepts, made by what makes them in earnest.
std::vector<Input> seeds();

/// What a target wants done when its inputs are over and the process ends; null for nothing. (Nothing is destroyed
/// then.)
inline void (*at_end)() = nullptr;

/// Ends the process with a line that says what did not hold.
[[noreturn]] void broken(const char* what);
inline void expect(bool holds, const char* what) {
  if (!holds) broken(what);
}

inline void append(Input& to, std::span<const std::byte> bytes) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  to.insert(to.end(), begin, begin + bytes.size());
}
template <class T>
void append_value(Input& to, const T& value) {
  append(to, std::as_bytes(std::span(&value, 1)));
}
inline Input from_text(std::string_view text) { return {text.begin(), text.end()}; }

/// Takes an input apart, front to back; what is not there is zero.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> rest) : rest_(rest) {}
  template <class T>
  T take() {
    T value{};
    const std::size_t bytes = std::min(sizeof(T), rest_.size());
    std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  std::span<const std::uint8_t> take(std::size_t bytes) {
    const auto part = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(part.size());
    return part;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace fargpu::fuzz
