#include "argument_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "parameter_facts.h"
#include "protocol/text.h"

namespace fargpu::client {
namespace {

constexpr std::size_t text_bytes_max = 256;
constexpr std::size_t list_values_max = 8;

class Writer {
 public:
  explicit Writer(const std::function<std::string(Handle)>& name_of) : name_of_(name_of) {}

  std::string value(const ParameterFacts& facts, std::uint64_t raw) const {
    switch (facts.value) {
      case Value::number: return std::to_string(cut(raw, facts.bytes));
      case Value::integer: return std::to_string(extended(raw, facts.bytes));
      case Value::real: return fmt::format("{}", std::bit_cast<float>(static_cast<std::uint32_t>(raw)));
      case Value::name: {
        const std::int64_t number = extended(raw, facts.bytes);
        const char* const constant = constant_of(facts.which, number);
        return constant ? constant : std::to_string(number);
      }
      case Value::text: return raw ? "\"" + text(reinterpret_cast<const char*>(raw)) + "\"" : "0";
      case Value::stream: return stream(raw);
      case Value::function: {
        const std::string name = name_of_(Handle(raw));
        return name.empty() ? address(raw) : printable(name, text_bytes_max);
      }
      case Value::record: return record(fields_of(facts.which), reinterpret_cast<const std::byte*>(raw));
      case Value::address: break;
    }
    return address(raw);
  }

  /// The values from `place` on, the first of them if there are many.
  std::string list(const ParameterFacts& facts, std::uint64_t place, std::uint64_t count) const {
    std::string all;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, list_values_max); ++i)
      all += (i ? ", " : "") + value(facts, in_memory(facts, place + i * facts.bytes));
    return "[" + all + (count > list_values_max ? ", ...]" : "]");
  }

  static std::string address(std::uint64_t raw) { return raw ? fmt::format("{:#x}", raw) : "0"; }
  static std::uint64_t in_memory(const ParameterFacts& facts, std::uint64_t place) {
    std::uint64_t raw = 0;
    std::memcpy(&raw, reinterpret_cast<const void*>(place), facts.bytes);
    return raw;
  }

 private:
  static std::uint64_t cut(std::uint64_t raw, unsigned bytes) {
    return bytes >= 8 ? raw : raw & ((std::uint64_t{1} << 8 * bytes) - 1);
  }
  static std::int64_t extended(std::uint64_t raw, unsigned bytes) {
    const unsigned spare = 64 - 8 * std::clamp(bytes, 1u, 8u);
    return static_cast<std::int64_t>(raw << spare) >> spare;
  }
  static std::string stream(std::uint64_t raw) {
    if (raw == reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY)) return "CU_STREAM_LEGACY";
    if (raw == reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD)) return "CU_STREAM_PER_THREAD";
    return address(raw);
  }
  static std::string text(const char* bytes) {
    return printable(std::string(bytes, ::strnlen(bytes, text_bytes_max + 1)), text_bytes_max);
  }

  // Fields that are zero tell little.
  std::string record(std::span<const ParameterFacts> fields, const std::byte* place) const {
    std::string all;
    for (const ParameterFacts& field : fields) {
      const std::uint64_t raw = in_memory(field, reinterpret_cast<std::uintptr_t>(place) + field.offset);
      if (raw == 0) continue;
      all += fmt::format("{}{}={}", all.empty() ? "" : ", ", word(field.name), value(field, raw));
    }
    return "{" + all + "}";
  }

  const std::function<std::string(Handle)>& name_of_;
};

}  // namespace

std::string argument_text(Symbol symbol, std::span<const std::uint64_t> arguments, CUresult result,
                          const std::function<std::string(Handle)>& name_of) {
  const std::span<const ParameterFacts> parameters = parameters_of(symbol);
  const Writer writer(name_of);
  std::string all;
  for (std::size_t i = 0; i < std::min(arguments.size(), parameters.size()); ++i) {
    const ParameterFacts& facts = parameters[i];
    const std::uint64_t raw = arguments[i];
    const char* const name = word(facts.name);
    const bool pointed = facts.place != fargpu::Place::itself && raw != 0 &&
                         (facts.place == fargpu::Place::in || result == CUDA_SUCCESS);
    all += all.empty() ? "" : ", ";
    if (facts.place == fargpu::Place::itself) all += fmt::format("{}={}", name, writer.value(facts, raw));
    else if (!pointed) all += fmt::format("{}={}", name, Writer::address(raw));
    else if (facts.value == Value::record) all += fmt::format("{}={}", name, writer.value(facts, raw));
    else if (facts.count >= 0)
      all += fmt::format("{}={}", name, writer.list(facts, raw, arguments[static_cast<std::size_t>(facts.count)]));
    else all += fmt::format("*{}={}", name, writer.value(facts, Writer::in_memory(facts, raw)));
  }
  return all;
}

}  // namespace fargpu::client
