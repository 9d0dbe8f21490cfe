#include "exec/format_print.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "exec/memory_access.h"

namespace fargpu::softgpu {
namespace {

// Widths and precisions beyond this are cut, so that a format cannot ask for unbounded output.
constexpr int field_max = 4096;
constexpr size_t string_bytes_max = 1 << 16;

/// One conversion of a format string, from % to the letter.
struct Conversion {
  std::string flags;
  int width = -1;
  int precision = -1;
  bool is_long = false;  // l, ll, j, z, t: 64-bit integers
  int half = 0;          // number of h
  char letter = 0;
};

void append_formatted(std::string& text, const std::string& spec, auto value) {
  char buffer[512];
  int length = std::snprintf(buffer, sizeof buffer, spec.c_str(), value);
  if (length < 0) return;
  if (static_cast<size_t>(length) < sizeof buffer) {
    text.append(buffer, static_cast<size_t>(length));
    return;
  }
  std::string large(static_cast<size_t>(length) + 1, '\0');
  std::snprintf(large.data(), large.size(), spec.c_str(), value);
  text.append(large, 0, static_cast<size_t>(length));
}

std::string spec_of(const Conversion& conversion, std::string_view length) {
  std::string spec = "%" + conversion.flags;
  if (conversion.width >= 0) spec += std::to_string(conversion.width);
  if (conversion.precision >= 0) spec.append(1, '.').append(std::to_string(conversion.precision));
  spec += length;
  spec += conversion.letter;
  return spec;
}

void append_integer(std::string& text, const Conversion& conversion, uint64_t bits) {
  bool is_signed = conversion.letter == 'd' || conversion.letter == 'i';
  if (!conversion.is_long) {
    auto shortened = [&](auto as_signed, auto as_unsigned) -> uint64_t {
      using S = decltype(as_signed);
      using U = decltype(as_unsigned);
      return is_signed ? static_cast<uint64_t>(int64_t{static_cast<S>(bits)}) : uint64_t{static_cast<U>(bits)};
    };
    if (conversion.half == 0) bits = shortened(int32_t{}, uint32_t{});
    if (conversion.half == 1) bits = shortened(int16_t{}, uint16_t{});
    if (conversion.half == 2) bits = shortened(int8_t{}, uint8_t{});
  }
  std::string spec = spec_of(conversion, "ll");
  if (is_signed) append_formatted(text, spec, static_cast<long long>(bits));
  else append_formatted(text, spec, static_cast<unsigned long long>(bits));
}

/// Parses from behind the % on; the position ends behind the letter.
Conversion parse_conversion(std::string_view format, size_t& position, PrintArguments& arguments, int& count) {
  Conversion conversion;
  auto peek = [&] { return position < format.size() ? format[position] : '\0'; };
  while (peek() != '\0' && std::string_view("-+ #0").find(peek()) != std::string_view::npos)
    conversion.flags += format[position++];
  auto number = [&]() -> int {
    if (peek() == '*') {
      ++position;
      ++count;
      return static_cast<int32_t>(arguments.next(4));
    }
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min(field_max, value * 10 + (format[position] - '0'));
      ++position;
    }
    return value;
  };
  if (peek() == '*' || (peek() >= '1' && peek() <= '9')) {
    conversion.width = number();
    if (conversion.width < 0) {
      conversion.flags += '-';
      conversion.width = -std::max(conversion.width, -field_max);
    }
    conversion.width = std::min(conversion.width, field_max);
  }
  if (peek() == '.') {
    ++position;
    conversion.precision = std::min(number(), field_max);  // negative: as if not given
  }
  for (bool more = true; more;) {
    switch (peek()) {
      case 'h': ++conversion.half; break;
      case 'l':
      case 'j':
      case 'z':
      case 't': conversion.is_long = true; break;
      case 'L': break;
      default: more = false;
    }
    if (more) ++position;
  }
  conversion.letter = peek();
  if (conversion.letter != '\0') ++position;
  return conversion;
}

}  // namespace

uint64_t PrintArguments::next(uint32_t bytes) {
  address_ = (address_ + bytes - 1) & ~uint64_t{bytes - 1};
  uint64_t value = 0;
  if (!has_failed_ && !read_generic(warp_, at_, lane_, address_, &value, bytes)) has_failed_ = true;
  address_ += bytes;
  return value;
}

std::string PrintArguments::string_at(uint64_t address) {
  std::string text;
  if (address == 0) return "(null)";
  for (char c = 1; !has_failed_ && text.size() < string_bytes_max; text.push_back(c)) {
    if (!read_generic(warp_, at_, lane_, address + text.size(), &c, 1)) has_failed_ = true;
    if (has_failed_ || c == '\0') break;
  }
  return text;
}

int format_print(std::string_view format, PrintArguments& arguments, std::string& text) {
  int count = 0;
  for (size_t position = 0; position < format.size();) {
    char c = format[position++];
    if (c != '%') {
      text += c;
      continue;
    }
    size_t start = position - 1;
    Conversion conversion = parse_conversion(format, position, arguments, count);
    switch (conversion.letter) {
      case '%': text += '%'; break;
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        ++count;
        append_integer(text, conversion, arguments.next(conversion.is_long ? 8 : 4));
        break;
      case 'c':
        ++count;
        append_formatted(text, spec_of(conversion, ""), static_cast<int>(arguments.next(4)));
        break;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
      case 'a':
      case 'A':
        ++count;
        append_formatted(text, spec_of(conversion, ""), std::bit_cast<double>(arguments.next(8)));
        break;
      case 's':
        ++count;
        append_formatted(text, spec_of(conversion, ""), arguments.string_at(arguments.next(8)).c_str());
        break;
      case 'p':
        ++count;
        append_formatted(text, spec_of(conversion, ""), reinterpret_cast<void*>(arguments.next(8)));
        break;
      default:
        // Not a conversion that kernels know: shown as it stands.
        text += format.substr(start, position - start);
    }
    if (arguments.has_failed()) break;
  }
  return count;
}

}  // namespace fargpu::softgpu
