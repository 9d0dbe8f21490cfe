#pragma once

#include <cstdint>
#include <string_view>

namespace fargpu::softgpu::ptx {

enum class TokenKind : uint8_t {
  end,
  word,         // an identifier with everything dotted on to it: ld.global.v4.f32, %tid.x, $L1
  directive,    // a dot and one word: .reg
  integer,      // value in Token::bits
  float32,      // 0fXXXXXXXX; its bits in Token::bits
  float64,      // 0dXXXXXXXXXXXXXXXX or a decimal; its bits in Token::bits
  string,       // contents without the quotes, escapes as written
  punctuation,  // one character, or one of << >> && || == != <= >=
};

struct Token {
  TokenKind kind = TokenKind::end;
  uint32_t line = 0;
  bool is_unsigned = false;  // an integer literal with the suffix U
  std::string_view text;
  uint64_t bits = 0;

  bool is(std::string_view punctuation) const { return kind == TokenKind::punctuation && text == punctuation; }
  bool is_directive(std::string_view name) const { return kind == TokenKind::directive && text == name; }
};

/// Cuts PTX text into tokens (PTX ISA 4.1 to 4.5). Views point into the text.
class Lexer {
 public:
  explicit Lexer(std::string_view text);

  const Token& peek() const { return current_; }
  /// The token after the current one.
  const Token& peek_next() const { return next_; }
  Token take();

 private:
  Token scan();
  void skip_blanks();
  Token scan_word(bool is_directive);
  Token scan_number();
  Token scan_string();
  Token scan_punctuation();
  bool at_end() const { return position_ >= text_.size(); }
  char at(size_t offset) const { return position_ + offset < text_.size() ? text_[position_ + offset] : '\0'; }

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  Token current_;
  Token next_;
};

}  // namespace fargpu::softgpu::ptx
