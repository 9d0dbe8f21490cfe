#include "ptx/lexer.h"

#include <array>
#include <bit>
#include <charconv>
#include <string>

#include "ptx/error.h"

namespace fargpu::softgpu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_follow(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '$'; }
bool is_word_start(char c) { return is_letter(c) || c == '_' || c == '$' || c == '%'; }

bool is_hex_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) {
  current_ = scan();
  next_ = scan();
}

Token Lexer::take() {
  Token taken = current_;
  current_ = next_;
  next_ = scan();
  return taken;
}

void Lexer::skip_blanks() {
  while (!at_end()) {
    char c = at(0);
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++position_;
    } else if (c == '/' && at(1) == '/') {
      while (!at_end() && at(0) != '\n') ++position_;
    } else if (c == '/' && at(1) == '*') {
      uint32_t opened = line_;
      position_ += 2;
      while (!at_end() && !(at(0) == '*' && at(1) == '/')) {
        if (at(0) == '\n') ++line_;
        ++position_;
      }
      if (at_end()) throw SyntaxError(opened, "comment is never closed");
      position_ += 2;
    } else {
      return;
    }
  }
}

Token Lexer::scan() {
  skip_blanks();
  if (at_end()) return {.kind = TokenKind::end, .line = line_, .text = "end of text"};
  char c = at(0);
  if (c == '"') return scan_string();
  if (is_digit(c)) return scan_number();
  if (c == '.' && (is_letter(at(1)) || at(1) == '_')) return scan_word(true);
  if (c == '.' && is_digit(at(1))) return scan_number();
  // A lone % is the remainder operator of constant expressions.
  if (is_word_start(c) && (c != '%' || is_follow(at(1)))) return scan_word(false);
  return scan_punctuation();
}

Token Lexer::scan_word(bool is_directive) {
  size_t start = position_++;
  while (is_follow(at(0))) ++position_;
  auto continues = [&] {
    if (at(0) == ':' && at(1) == ':') return is_follow(at(2)) ? 2 : 0;
    if (!is_directive && at(0) == '.') return is_follow(at(1)) ? 1 : 0;
    return 0;
  };
  while (int separator = continues()) {
    position_ += separator;
    while (is_follow(at(0))) ++position_;
  }
  return {.kind = is_directive ? TokenKind::directive : TokenKind::word,
          .line = line_,
          .text = text_.substr(start, position_ - start)};
}

Token Lexer::scan_number() {
  size_t start = position_;
  auto text = [&] { return text_.substr(start, position_ - start); };
  auto hexadecimal = [&](size_t digits, TokenKind kind) {
    position_ += 2;
    size_t first = position_;
    while (is_hex_digit(at(0)) && position_ - first < digits) ++position_;
    if (position_ - first != digits) throw SyntaxError(line_, "malformed floating-point literal");
    uint64_t bits = 0;
    std::from_chars(text_.data() + first, text_.data() + position_, bits, 16);
    return Token{.kind = kind, .line = line_, .text = text(), .bits = bits};
  };
  if (at(0) == '0' && (at(1) == 'f' || at(1) == 'F')) return hexadecimal(8, TokenKind::float32);
  if (at(0) == '0' && (at(1) == 'd' || at(1) == 'D')) return hexadecimal(16, TokenKind::float64);

  int base = 10;
  if (at(0) == '0' && (at(1) == 'x' || at(1) == 'X')) base = 16;
  if (at(0) == '0' && (at(1) == 'b' || at(1) == 'B')) base = 2;
  if (base != 10) {
    position_ += 2;
  } else {
    size_t ahead = 0;
    while (is_digit(at(ahead))) ++ahead;
    bool is_float = at(ahead) == '.' || at(ahead) == 'e' || at(ahead) == 'E';
    if (is_float) {
      double value = 0;
      auto [end, error] = std::from_chars(text_.data() + position_, text_.data() + text_.size(), value);
      if (error != std::errc()) throw SyntaxError(line_, "malformed floating-point literal");
      position_ = end - text_.data();
      return {.kind = TokenKind::float64, .line = line_, .text = text(), .bits = std::bit_cast<uint64_t>(value)};
    }
    if (at(0) == '0' && is_digit(at(1))) base = 8;
  }
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text_.data() + position_, text_.data() + text_.size(), value, base);
  if (error != std::errc()) throw SyntaxError(line_, "malformed or too large integer literal");
  position_ = end - text_.data();
  bool is_unsigned = at(0) == 'U' || at(0) == 'u';
  if (is_unsigned) ++position_;
  if (is_follow(at(0))) throw SyntaxError(line_, "malformed integer literal");
  return {.kind = TokenKind::integer,
          .line = line_,
          .is_unsigned = is_unsigned || value > INT64_MAX,
          .text = text(),
          .bits = value};
}

Token Lexer::scan_string() {
  size_t start = ++position_;
  while (!at_end() && at(0) != '"' && at(0) != '\n') position_ += at(0) == '\\' ? 2 : 1;
  if (at_end() || at(0) != '"') throw SyntaxError(line_, "string is never closed");
  Token token = {.kind = TokenKind::string, .line = line_, .text = text_.substr(start, position_ - start)};
  ++position_;
  return token;
}

Token Lexer::scan_punctuation() {
  static constexpr std::array<std::string_view, 8> pairs = {"<<", ">>", "&&", "||", "==", "!=", "<=", ">="};
  size_t length = 1;
  for (std::string_view pair : pairs)
    if (text_.substr(position_, 2) == pair) length = 2;
  static constexpr std::string_view known = "{}()[],;:=+-*/%~!<>&|^?@#";
  if (length == 1 && known.find(at(0)) == std::string_view::npos) {
    char c = at(0);
    std::string shown = c >= ' ' && c < 127 ? std::string(1, c) : "\\x" + std::to_string(static_cast<uint8_t>(c));
    throw SyntaxError(line_, "unexpected character '" + shown + "'");
  }
  Token token = {.kind = TokenKind::punctuation, .line = line_, .text = text_.substr(position_, length)};
  position_ += length;
  return token;
}

}  // namespace fargpu::softgpu::ptx
