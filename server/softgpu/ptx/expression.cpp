#include "ptx/expression.h"

#include <array>
#include <bit>
#include <string>

#include "ptx/error.h"

namespace fargpu::softgpu::ptx {
namespace {

// Nesting that no compiler writes; deeper text could exhaust the stack.
constexpr int nesting_max = 200;

struct Operator {
  std::string_view text;
  int precedence;
};

constexpr std::array<Operator, 18> binary_operators = {{{"*", 10},
                                                        {"/", 10},
                                                        {"%", 10},
                                                        {"+", 9},
                                                        {"-", 9},
                                                        {"<<", 8},
                                                        {">>", 8},
                                                        {"<", 7},
                                                        {">", 7},
                                                        {"<=", 7},
                                                        {">=", 7},
                                                        {"==", 6},
                                                        {"!=", 6},
                                                        {"&", 5},
                                                        {"^", 4},
                                                        {"|", 3},
                                                        {"&&", 2},
                                                        {"||", 1}}};

const Operator* binary_operator(const Token& token) {
  if (token.kind != TokenKind::punctuation) return nullptr;
  for (const Operator& candidate : binary_operators)
    if (candidate.text == token.text) return &candidate;
  return nullptr;
}

double as_double(const Constant& value) {
  switch (value.kind) {
    case Constant::Kind::float64: return std::bit_cast<double>(value.bits);
    case Constant::Kind::float32: return std::bit_cast<float>(static_cast<uint32_t>(value.bits));
    case Constant::Kind::integer: break;
  }
  return value.is_unsigned ? static_cast<double>(value.bits) : static_cast<double>(static_cast<int64_t>(value.bits));
}

Constant from_double(double value) { return {.kind = Constant::Kind::float64, .bits = std::bit_cast<uint64_t>(value)}; }

Constant from_bool(bool value) { return {.bits = value}; }

class Evaluator {
 public:
  explicit Evaluator(Lexer& lexer) : lexer_(lexer) {}

  Constant conditional() {
    Nesting nesting(*this);
    Constant condition = binary(1);
    if (!lexer_.peek().is("?")) return condition;
    lexer_.take();
    Constant if_true = conditional();
    if (!lexer_.peek().is(":")) fail("expected ':' in a constant expression");
    lexer_.take();
    Constant if_false = conditional();
    return condition.bits != 0 ? if_true : if_false;
  }

 private:
  struct Nesting {
    explicit Nesting(Evaluator& owner) : depth(owner.depth_) {
      if (++depth > nesting_max) owner.fail("constant expression is nested too deeply");
    }
    ~Nesting() { --depth; }
    int& depth;
  };

  [[noreturn]] void fail(const std::string& reason) { throw SyntaxError(lexer_.peek().line, reason); }

  Constant binary(int precedence_min) {
    Constant left = unary();
    while (const Operator* found = binary_operator(lexer_.peek())) {
      if (found->precedence < precedence_min) break;
      lexer_.take();
      Constant right = binary(found->precedence + 1);
      left = apply(found->text, left, right);
    }
    return left;
  }

  Constant unary() {
    Nesting nesting(*this);
    Token token = lexer_.peek();
    if (token.kind == TokenKind::integer) {
      lexer_.take();
      return {.is_unsigned = token.is_unsigned, .bits = token.bits};
    }
    if (token.kind == TokenKind::float32 || token.kind == TokenKind::float64) {
      lexer_.take();
      return {.kind = token.kind == TokenKind::float32 ? Constant::Kind::float32 : Constant::Kind::float64,
              .bits = token.bits};
    }
    if (token.kind == TokenKind::word && token.text == "WARP_SZ") {
      lexer_.take();
      return {.bits = 32};
    }
    if (token.is("(")) return parenthesized();
    if (!token.is("-") && !token.is("+") && !token.is("~") && !token.is("!"))
      fail("expected a constant, found '" + std::string(token.text) + "'");
    lexer_.take();
    Constant value = unary();
    if (token.is("-")) return negate(value);
    if (token.is("~")) return {.is_unsigned = value.is_unsigned, .bits = ~value.bits};
    if (token.is("!")) return from_bool(value.bits == 0);
    return value;
  }

  Constant parenthesized() {
    lexer_.take();
    bool is_cast = lexer_.peek().is_directive(".s64") || lexer_.peek().is_directive(".u64");
    if (is_cast) {
      bool to_unsigned = lexer_.take().text == ".u64";
      close();
      Constant value = unary();
      value.is_unsigned = to_unsigned;
      return value;
    }
    Constant value = conditional();
    close();
    return value;
  }

  void close() {
    if (!lexer_.peek().is(")")) fail("expected ')' in a constant expression");
    lexer_.take();
  }

  static Constant negate(Constant value) {
    switch (value.kind) {
      case Constant::Kind::integer: value.bits = -value.bits; break;
      case Constant::Kind::float32: value.bits ^= uint64_t{1} << 31; break;
      case Constant::Kind::float64: value.bits ^= uint64_t{1} << 63; break;
    }
    return value;
  }

  Constant apply(std::string_view op, const Constant& left, const Constant& right) {
    bool is_float = left.kind != Constant::Kind::integer || right.kind != Constant::Kind::integer;
    return is_float ? apply_float(op, as_double(left), as_double(right)) : apply_integer(op, left, right);
  }

  Constant apply_float(std::string_view op, double left, double right) {
    if (op == "+") return from_double(left + right);
    if (op == "-") return from_double(left - right);
    if (op == "*") return from_double(left * right);
    if (op == "/") return from_double(left / right);
    if (op == "<") return from_bool(left < right);
    if (op == ">") return from_bool(left > right);
    if (op == "<=") return from_bool(left <= right);
    if (op == ">=") return from_bool(left >= right);
    if (op == "==") return from_bool(left == right);
    if (op == "!=") return from_bool(left != right);
    fail("operator '" + std::string(op) + "' does not take floating-point operands");
  }

  Constant apply_integer(std::string_view op, const Constant& left, const Constant& right) {
    bool is_unsigned = left.is_unsigned || right.is_unsigned;
    uint64_t a = left.bits, b = right.bits;
    auto less = [&](uint64_t x, uint64_t y) {
      return is_unsigned ? x < y : static_cast<int64_t>(x) < static_cast<int64_t>(y);
    };
    auto result = [&](uint64_t bits) { return Constant{.is_unsigned = is_unsigned, .bits = bits}; };
    if (op == "+") return result(a + b);
    if (op == "-") return result(a - b);
    if (op == "*") return result(a * b);
    if (op == "&") return result(a & b);
    if (op == "|") return result(a | b);
    if (op == "^") return result(a ^ b);
    if (op == "<<") return {.is_unsigned = left.is_unsigned, .bits = b < 64 ? a << b : 0};
    if (op == ">>") return {.is_unsigned = left.is_unsigned, .bits = shift_right(left, b)};
    if (op == "<") return from_bool(less(a, b));
    if (op == ">") return from_bool(less(b, a));
    if (op == "<=") return from_bool(!less(b, a));
    if (op == ">=") return from_bool(!less(a, b));
    if (op == "==") return from_bool(a == b);
    if (op == "!=") return from_bool(a != b);
    if (op == "&&") return from_bool(a != 0 && b != 0);
    if (op == "||") return from_bool(a != 0 || b != 0);
    if (b == 0) fail("division by zero in a constant expression");
    bool is_divide = op == "/";
    if (is_unsigned) return result(is_divide ? a / b : a % b);
    int64_t x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
    if (y == -1) return result(is_divide ? -a : 0);  // INT64_MIN / -1 traps on the host
    return result(static_cast<uint64_t>(is_divide ? x / y : x % y));
  }

  static uint64_t shift_right(const Constant& value, uint64_t count) {
    if (value.is_unsigned) return count < 64 ? value.bits >> count : 0;
    return static_cast<uint64_t>(static_cast<int64_t>(value.bits) >> (count < 64 ? count : 63));
  }

  Lexer& lexer_;
  int depth_ = 0;
};

}  // namespace

Constant parse_constant(Lexer& lexer) { return Evaluator(lexer).conditional(); }

bool starts_constant(const Lexer& lexer) {
  const Token& token = lexer.peek();
  switch (token.kind) {
    case TokenKind::integer:
    case TokenKind::float32:
    case TokenKind::float64: return true;
    case TokenKind::word: return token.text == "WARP_SZ";
    case TokenKind::punctuation: return token.is("-") || token.is("+") || token.is("~") || token.is("(");
    default: return false;
  }
}

}  // namespace fargpu::softgpu::ptx
