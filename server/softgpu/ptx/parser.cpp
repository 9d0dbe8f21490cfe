#include "ptx/parser.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "ptx/error.h"
#include "ptx/expression.h"
#include "ptx/lexer.h"

namespace fargpu::softgpu::ptx {
namespace {

constexpr uint32_t newest_version = 900;  // PTX 9.0, of CUDA 13.0

// Bounds on what a text may declare, far above what compilers write, so that a short hostile text
// cannot ask for unbounded memory.
constexpr uint64_t registers_max = 1u << 20;
constexpr uint64_t variable_bytes_max = uint64_t{1} << 40;
constexpr uint64_t omitted_elements_max = 1u << 24;
constexpr int nesting_max = 200;

std::optional<Space> parse_space(std::string_view directive) {
  if (directive == ".global") return Space::global;
  if (directive == ".const") return Space::constant;
  if (directive == ".shared") return Space::shared;
  if (directive == ".local") return Space::local;
  if (directive == ".param") return Space::param;
  if (directive == ".reg") return Space::reg;
  return std::nullopt;
}

std::optional<Linkage> parse_linkage(std::string_view directive) {
  if (directive == ".extern") return Linkage::external;
  if (directive == ".visible") return Linkage::visible;
  if (directive == ".weak") return Linkage::weak;
  if (directive == ".common") return Linkage::common;
  return std::nullopt;
}

/// What names mean inside a function body, innermost scope last.
class Scopes {
 public:
  struct Binding {
    bool is_register = false;
    uint32_t index = no_index;
    uint32_t vector_width = 1;
  };

  void open() { scopes_.emplace_back(); }

  /// Labels that were only mentioned belong to the enclosing scope.
  void close(Function& function) {
    Scope closed = std::move(scopes_.back());
    scopes_.pop_back();
    for (auto [name, label] : closed.labels) {
      if (function.labels[label].position != no_index) continue;
      if (scopes_.empty()) throw SyntaxError(closed.label_lines[name], unknown_label(name));
      auto [outer, is_new] = scopes_.back().labels.emplace(name, label);
      if (is_new) scopes_.back().label_lines[name] = closed.label_lines[name];
      else same_labels_.emplace_back(label, outer->second);
    }
  }

  /// Gives the labels that turned out to be one the position of that one.
  void settle_labels(Function& function) {
    for (auto it = same_labels_.rbegin(); it != same_labels_.rend(); ++it)
      function.labels[it->first].position = function.labels[it->second].position;
  }

  void bind(std::string_view name, Binding binding, uint32_t line) {
    if (!scopes_.back().names.emplace(name, binding).second)
      throw SyntaxError(line, "'" + std::string(name) + "' is declared twice");
  }

  /// Declares prefix0 to prefix(count-1) as consecutive registers.
  void bind_range(std::string_view prefix, uint32_t first, uint32_t count) {
    scopes_.back().ranges[prefix] = {first, count};
  }

  std::optional<Binding> find(std::string_view name) const {
    size_t digits = name.find_last_not_of("0123456789");
    digits = digits == std::string_view::npos ? 0 : digits + 1;
    std::string_view prefix = name.substr(0, digits);
    uint32_t number = 0;
    bool has_number = digits < name.size() &&
                      std::from_chars(name.data() + digits, name.data() + name.size(), number).ec == std::errc();
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto found = scope->names.find(name); found != scope->names.end()) return found->second;
      if (!has_number) continue;
      auto range = scope->ranges.find(prefix);
      if (range != scope->ranges.end() && number < range->second.count)
        return Binding{true, range->second.first + number, 1};
    }
    return std::nullopt;
  }

  uint32_t mention_label(Function& function, std::string_view name, uint32_t line) {
    auto [found, is_new] = scopes_.back().labels.emplace(name, static_cast<uint32_t>(function.labels.size()));
    if (is_new) {
      function.labels.push_back({.name = name});
      scopes_.back().label_lines[name] = line;
    }
    return found->second;
  }

  void define_label(Function& function, std::string_view name, uint32_t line) {
    Label& label = function.labels[mention_label(function, name, line)];
    if (label.position != no_index) throw SyntaxError(line, "label '" + std::string(name) + "' is defined twice");
    label.position = static_cast<uint32_t>(function.body.size());
  }

  bool is_empty() const { return scopes_.empty(); }

 private:
  struct Range {
    uint32_t first, count;
  };
  struct Scope {
    std::unordered_map<std::string_view, Binding> names;
    std::unordered_map<std::string_view, Range> ranges;
    std::unordered_map<std::string_view, uint32_t> labels;
    std::unordered_map<std::string_view, uint32_t> label_lines;
  };

  static std::string unknown_label(std::string_view name) { return "label '" + std::string(name) + "' is not defined"; }

  std::vector<Scope> scopes_;
  std::vector<std::pair<uint32_t, uint32_t>> same_labels_;
};

class Parser {
 public:
  explicit Parser(Module& module) : module_(module), lexer_(module.text) {}

  void parse_module() {
    parse_header();
    while (peek().kind != TokenKind::end) parse_module_statement();
  }

 private:
  const Token& peek() const { return lexer_.peek(); }
  Token take() { return lexer_.take(); }

  [[noreturn]] void fail(const std::string& reason) const { throw SyntaxError(peek().line, reason); }
  [[noreturn]] void fail_expected(std::string_view what) const {
    fail("expected " + std::string(what) + ", found '" + std::string(peek().text) + "'");
  }

  bool accept(std::string_view punctuation) {
    if (!peek().is(punctuation)) return false;
    take();
    return true;
  }
  bool accept_directive(std::string_view name) {
    if (!peek().is_directive(name)) return false;
    take();
    return true;
  }
  void expect(std::string_view punctuation) {
    if (!accept(punctuation)) fail_expected("'" + std::string(punctuation) + "'");
  }
  std::string_view expect_word(std::string_view what) {
    if (peek().kind != TokenKind::word) fail_expected(what);
    return take().text;
  }
  uint64_t expect_integer() {
    Constant value = parse_constant(lexer_);
    if (value.kind != Constant::Kind::integer) fail("expected an integer");
    return value.bits;
  }

  // ---- the module --------------------------------------------------------------------------------------------------

  void parse_header() {
    if (!accept_directive(".version")) fail("a PTX text begins with .version");
    std::string_view version = take().text;
    size_t dot = version.find('.');
    const char* end = version.data() + version.size();
    auto number = [&](const char* first, const char* last, uint32_t& out) {
      return std::from_chars(first, last, out).ec == std::errc();
    };
    if (dot == std::string_view::npos || !number(version.data(), version.data() + dot, module_.version_major) ||
        !number(version.data() + dot + 1, end, module_.version_minor))
      fail("malformed .version");
    if (module_.version_major * 100 + module_.version_minor > newest_version)
      throw UnsupportedVersion(peek().line, "PTX " + std::string(version) + " is newer than this device");
    if (!accept_directive(".target")) fail("expected .target after .version");
    module_.target = expect_word("a target");
    size_t digits = module_.target.find_first_of("0123456789");
    if (!module_.target.starts_with("sm_") && !module_.target.starts_with("compute_"))
      fail("unknown target '" + std::string(module_.target) + "'");
    if (digits == std::string_view::npos ||
        !number(module_.target.data() + digits, module_.target.data() + module_.target.size(), module_.target_number))
      fail("malformed target '" + std::string(module_.target) + "'");
    while (accept(",")) expect_word("a target option");
    if (accept_directive(".address_size")) module_.address_bits = static_cast<uint32_t>(expect_integer());
    if (module_.address_bits != 64) fail("only .address_size 64 is supported");
  }

  void parse_module_statement() {
    if (skip_debug_directive()) return;
    if (accept(";")) return;
    Linkage linkage = Linkage::internal;
    if (peek().kind == TokenKind::directive)
      if (auto parsed = parse_linkage(peek().text)) {
        linkage = *parsed;
        take();
      }
    if (peek().is_directive(".func") || peek().is_directive(".entry")) return parse_function(linkage);
    if (peek().kind == TokenKind::directive && parse_space(peek().text)) {
      std::vector<Variable> declared;
      Space space = *parse_space(take().text);
      if (space == Space::reg || space == Space::local || space == Space::param)
        fail("this state space has no variables of module scope");
      parse_variables(space, linkage, declared);
      expect(";");
      for (Variable& variable : declared) module_.variables.push_back(std::move(variable));
      return;
    }
    if (accept_directive(".alias")) {
      std::string_view name = expect_word("a function");
      expect(",");
      module_.aliases.push_back({name, expect_word("a function")});
      expect(";");
      return;
    }
    fail_expected("a directive of module scope");
  }

  /// .file, .loc, .section, .pragma: nothing that changes results.
  bool skip_debug_directive() {
    if (peek().is_directive(".file") || peek().is_directive(".loc")) {
      uint32_t line = peek().line;
      while (peek().kind != TokenKind::end && peek().line == line) take();
      return true;
    }
    if (accept_directive(".section")) {
      while (!peek().is("{") && peek().kind != TokenKind::end) take();
      expect("{");
      while (!peek().is("}") && peek().kind != TokenKind::end) take();
      expect("}");
      return true;
    }
    if (accept_directive(".pragma")) {
      do {
        if (peek().kind != TokenKind::string) fail_expected("a string");
        take();
      } while (accept(","));
      expect(";");
      return true;
    }
    return false;
  }

  // ---- variables ---------------------------------------------------------------------------------------------------

  /// What stands between the state space and the names.
  struct Declaration {
    Type type = Type::none;
    uint32_t vector_width = 1;
    uint32_t align = 0;
    bool is_managed = false;
  };

  Declaration parse_declaration() {
    Declaration result;
    while (peek().kind == TokenKind::directive) {
      std::string_view directive = take().text;
      if (directive == ".align") {
        uint64_t align = expect_integer();
        if (align == 0 || (align & (align - 1)) != 0 || align > 1u << 16) fail("alignment is not a power of two");
        result.align = static_cast<uint32_t>(align);
      } else if (directive == ".v2" || directive == ".v4" || directive == ".v8") {
        result.vector_width = directive[2] - '0';
      } else if (directive == ".attribute") {
        result.is_managed |= parse_attribute();
      } else if (directive == ".ptr") {
        parse_pointer_attributes();
      } else if (directive == ".texref" || directive == ".samplerref" || directive == ".surfref") {
        fail("texture, sampler and surface references are not supported; use texture objects");
      } else if (auto type = parse_type(directive.substr(1))) {
        result.type = *type;
      } else {
        fail("unknown directive '" + std::string(directive) + "' in a declaration");
      }
    }
    if (result.type == Type::none) fail("declaration without a type");
    if (result.align == 0) result.align = std::max(1u, size_of(result.type) * result.vector_width);
    return result;
  }

  bool parse_attribute() {
    expect("(");
    bool is_managed = false;
    int depth = 1;
    while (depth > 0) {
      if (peek().kind == TokenKind::end) fail("attribute is never closed");
      is_managed |= peek().is_directive(".managed");
      if (peek().is("(")) ++depth;
      if (peek().is(")")) --depth;
      take();
    }
    return is_managed;
  }

  /// .ptr .space .align N: a hint about where a parameter points.
  void parse_pointer_attributes() {
    if (peek().kind == TokenKind::directive && parse_space(peek().text)) take();
    if (accept_directive(".align")) expect_integer();
  }

  void parse_variables(Space space, Linkage linkage, std::vector<Variable>& out) {
    Declaration declaration = parse_declaration();
    do {
      Variable variable = {.name = {},
                           .space = space,
                           .type = declaration.type,
                           .vector_width = declaration.vector_width,
                           .align = declaration.align,
                           .is_managed = declaration.is_managed,
                           .linkage = linkage,
                           .initializer = {},
                           .line = peek().line};
      variable.name = expect_word("a variable name");
      std::vector<uint64_t> dimensions = parse_dimensions(variable);
      if (variable.count * variable.vector_width > variable_bytes_max / 16)
        fail("variable '" + std::string(variable.name) + "' is too large");
      if (accept("=")) parse_initializer(variable, dimensions);
      out.push_back(std::move(variable));
    } while (accept(","));
  }

  std::vector<uint64_t> parse_dimensions(Variable& variable) {
    std::vector<uint64_t> dimensions;
    while (accept("[")) {
      variable.is_array = true;
      uint64_t extent = 0;
      if (!peek().is("]")) extent = expect_integer();
      if (extent == 0) {
        if (!dimensions.empty()) fail("only the first dimension may be left open");
        variable.is_unsized = true;
      }
      expect("]");
      dimensions.push_back(extent);
      if (extent != 0 && variable.count > variable_bytes_max / extent) fail("array is too large");
      variable.count *= std::max<uint64_t>(extent, 1);
    }
    if (variable.is_unsized && dimensions.size() == 1) variable.count = 0;
    return dimensions;
  }

  void parse_initializer(Variable& variable, const std::vector<uint64_t>& dimensions) {
    size_t elements = std::max<uint64_t>(1, variable.vector_width);
    std::vector<uint64_t> extents = dimensions;
    if (variable.vector_width > 1) extents.push_back(elements);
    parse_initializer_level(variable.initializer, extents, 0);
    if (variable.is_unsized) {
      uint64_t inner = 1;
      for (size_t i = 1; i < extents.size(); ++i) inner *= extents[i];
      variable.count = (variable.initializer.size() + inner - 1) / std::max<uint64_t>(inner, 1) *
                       (inner / std::max<uint64_t>(variable.vector_width, 1));
      variable.is_unsized = false;
    }
    if (variable.initializer.size() > variable.count * variable.vector_width)
      fail("initializer of '" + std::string(variable.name) + "' has too many elements");
  }

  void parse_initializer_level(std::vector<InitializerItem>& out, const std::vector<uint64_t>& extents, size_t level) {
    if (!accept("{")) {
      out.push_back(parse_initializer_item());
      return;
    }
    if (level > nesting_max) fail("initializer is nested too deeply");
    size_t first = out.size();
    uint64_t inner = 1;  // scalars one element of this level takes
    for (size_t i = level + 1; i < extents.size(); ++i) inner *= extents[i];
    uint64_t element = 0;
    while (!peek().is("}")) {
      bool is_nested = peek().is("{");
      parse_initializer_level(out, extents, level + 1);
      ++element;
      // Elements that a nested list leaves out are zero.
      uint64_t end = first + element * inner;
      if (is_nested && end > out.size() && peek().is(",")) {
        omitted_elements_ += end - out.size();
        if (omitted_elements_ > omitted_elements_max) fail("initializers leave out too much");
        out.resize(end);
      }
      if (!accept(",")) break;
    }
    expect("}");
  }

  InitializerItem parse_initializer_item() {
    if (starts_constant(lexer_)) {
      uint32_t line = peek().line;
      // 0xff(symbol) selects one byte of an address (mask operator).
      Constant value = parse_constant(lexer_);
      if (value.kind == Constant::Kind::integer && peek().is("(")) {
        InitializerItem item = parse_masked_symbol(value.bits, line);
        return item;
      }
      return {.bits = value.bits,
              .symbol = {},
              .is_float = value.kind == Constant::Kind::float64,
              .is_float32 = value.kind == Constant::Kind::float32};
    }
    InitializerItem item;
    std::string_view word = expect_word("an initializer");
    if (word == "generic" && accept("(")) {
      item.is_generic = true;
      item.symbol = expect_word("a symbol");
      parse_symbol_offset(item);
      expect(")");
    } else {
      item.symbol = word;
    }
    parse_symbol_offset(item);
    return item;
  }

  InitializerItem parse_masked_symbol(uint64_t mask, uint32_t line) {
    expect("(");
    InitializerItem item = parse_initializer_item();
    expect(")");
    uint8_t byte = 0;
    while (byte < 8 && mask != uint64_t{0xff} << (8 * byte)) ++byte;
    if (byte == 8) throw SyntaxError(line, "a mask operator selects exactly one byte");
    item.mask_byte = byte;
    return item;
  }

  void parse_symbol_offset(InitializerItem& item) {
    bool is_minus = peek().is("-");
    if (!is_minus && !peek().is("+")) return;
    take();
    uint64_t offset = expect_integer();
    item.bits += is_minus ? -offset : offset;
  }

  // ---- functions ---------------------------------------------------------------------------------------------------

  void parse_function(Linkage linkage) {
    Function function;
    function.linkage = linkage;
    function.line = peek().line;
    function.is_kernel = take().text == ".entry";
    function_ = &function;
    scopes_ = Scopes();
    scopes_.open();
    if (accept_directive(".attribute")) parse_attribute();
    if (!function.is_kernel && peek().is("(")) function.signature.returns = parse_parameters(/*is_bound=*/true);
    function.name = expect_word("a function name");
    if (peek().is("(")) function.signature.parameters = parse_parameters(/*is_bound=*/true);
    parse_function_directives(function);
    if (accept(";")) {
      // A declaration only.
    } else if (accept("{")) {
      function.has_body = true;
      parse_body();
    } else {
      fail_expected("a function body");
    }
    scopes_ = Scopes();
    function_ = nullptr;
    module_.functions.push_back(std::move(function));
  }

  /// Parameters of a function are variables (or registers) of its body; those of a prototype
  /// have no names.
  std::vector<Variable> parse_parameters(bool is_bound) {
    std::vector<Variable> parameters;
    expect("(");
    while (!peek().is(")")) {
      if (peek().kind != TokenKind::directive) fail_expected("a parameter");
      auto space = parse_space(take().text);
      if (space != Space::param && space != Space::reg) fail("a parameter is .param or .reg");
      Declaration declaration = parse_declaration();
      Variable parameter = {.name = {},
                            .space = *space,
                            .type = declaration.type,
                            .vector_width = declaration.vector_width,
                            .align = declaration.align,
                            .initializer = {},
                            .line = peek().line};
      parameter.name = expect_word("a parameter name");
      parse_dimensions(parameter);
      if (is_bound) bind_parameter(parameter);
      parameters.push_back(std::move(parameter));
      if (!accept(",")) break;
    }
    expect(")");
    return parameters;
  }

  void bind_parameter(const Variable& parameter) {
    if (parameter.space == Space::reg)
      declare_register(parameter.name, parameter.type, parameter.vector_width, parameter.line);
    else declare_variable(parameter);
  }

  void parse_function_directives(Function& function) {
    while (peek().kind == TokenKind::directive) {
      std::string_view directive = take().text;
      LaunchBounds& bounds = function.bounds;
      if (directive == ".maxntid") {
        bounds.max_threads = parse_dimension_list();
      } else if (directive == ".reqntid") {
        bounds.required_threads = parse_dimension_list();
      } else if (directive == ".reqnctapercluster") {
        bounds.required_cluster = parse_dimension_list();
      } else if (directive == ".explicitcluster") {
        bounds.is_cluster_explicit = true;
      } else if (directive == ".maxclusterrank") {
        bounds.max_cluster_rank = static_cast<uint32_t>(expect_integer());
      } else if (directive == ".minnctapersm" || directive == ".maxnctapersm") {
        uint64_t count = expect_integer();
        if (directive == ".minnctapersm") bounds.min_blocks_per_multiprocessor = static_cast<uint32_t>(count);
      } else if (directive == ".maxnreg") {
        bounds.max_registers = static_cast<uint32_t>(expect_integer());
      } else if (directive == ".noreturn") {
        function.signature.is_noreturn = true;
      } else if (directive == ".pragma") {
        take();
        expect(";");
      } else if (directive == ".abi_preserve" || directive == ".abi_preserve_control") {
        expect_integer();
      } else {
        fail("unknown directive '" + std::string(directive) + "' of a function");
      }
    }
  }

  Dimensions parse_dimension_list() {
    uint32_t extents[3] = {1, 1, 1};
    for (int i = 0; i < 3; ++i) {
      extents[i] = static_cast<uint32_t>(expect_integer());
      if (!accept(",")) break;
    }
    return {extents[0], extents[1], extents[2]};
  }

  // ---- function bodies ---------------------------------------------------------------------------------------------

  void parse_body() {
    size_t depth = 1;
    scopes_.open();
    while (depth > 0) {
      if (peek().kind == TokenKind::end) fail("function body is never closed");
      if (accept("{")) {
        scopes_.open();
        ++depth;
      } else if (accept("}")) {
        scopes_.close(*function_);
        --depth;
      } else {
        parse_statement();
      }
    }
    scopes_.close(*function_);
    scopes_.settle_labels(*function_);
  }

  void parse_statement() {
    if (skip_debug_directive() || accept(";")) return;
    if (peek().kind == TokenKind::directive) return parse_body_directive();
    if (peek().kind == TokenKind::word && lexer_.peek_next().is(":")) return parse_label();
    parse_instruction();
  }

  void parse_body_directive() {
    Linkage linkage = Linkage::internal;
    if (auto parsed = parse_linkage(peek().text)) {
      linkage = *parsed;
      take();
    }
    auto space = parse_space(peek().text);
    if (!space) fail("unknown directive '" + std::string(peek().text) + "'");
    take();
    if (*space == Space::reg) {
      parse_registers();
    } else {
      std::vector<Variable> declared;
      parse_variables(*space, linkage, declared);
      for (const Variable& variable : declared) declare_variable(variable);
    }
    expect(";");
  }

  void parse_registers() {
    Declaration declaration = parse_declaration();
    do {
      uint32_t line = peek().line;
      std::string_view name = expect_word("a register name");
      if (accept("<")) {
        uint64_t count = expect_register_count();
        expect(">");
        if (declaration.vector_width != 1) fail("ranges of vector registers are not supported");
        uint32_t first = add_registers(declaration.type, count);
        scopes_.bind_range(name, first, static_cast<uint32_t>(count));
      } else {
        declare_register(name, declaration.type, declaration.vector_width, line);
      }
    } while (accept(","));
  }

  // Not a general expression: the closing '>' would read as a comparison.
  uint64_t expect_register_count() {
    if (peek().kind != TokenKind::integer) fail_expected("a number of registers");
    return take().bits;
  }

  uint32_t add_registers(Type type, uint64_t count) {
    std::vector<Register>& registers = function_->registers;
    if (count > registers_max || registers.size() + count > registers_max) fail("too many registers");
    uint32_t first = static_cast<uint32_t>(registers.size());
    registers.resize(registers.size() + count, Register{type});
    return first;
  }

  void declare_register(std::string_view name, Type type, uint32_t vector_width, uint32_t line) {
    uint32_t first = add_registers(type, vector_width);
    scopes_.bind(name, {true, first, vector_width}, line);
  }

  void declare_variable(const Variable& variable) {
    uint32_t index = static_cast<uint32_t>(function_->variables.size());
    scopes_.bind(variable.name, {false, index, 1}, variable.line);
    function_->variables.push_back(variable);
  }

  void parse_label() {
    Token name = take();
    take();  // the colon
    if (accept_directive(".branchtargets")) {
      TargetList list = {.name = name.text, .labels = {}, .functions = {}};
      do {
        list.labels.push_back(scopes_.mention_label(*function_, expect_word("a label"), name.line));
      } while (accept(","));
      expect(";");
      function_->target_lists.push_back(std::move(list));
    } else if (accept_directive(".calltargets")) {
      TargetList list = {.name = name.text, .labels = {}, .functions = {}};
      do {
        list.functions.push_back(expect_word("a function"));
      } while (accept(","));
      expect(";");
      function_->target_lists.push_back(std::move(list));
    } else if (accept_directive(".callprototype")) {
      Prototype prototype = {.name = name.text, .signature = {}};
      if (peek().is("(")) prototype.signature.returns = parse_parameters(/*is_bound=*/false);
      expect_word("'_'");
      if (peek().is("(")) prototype.signature.parameters = parse_parameters(/*is_bound=*/false);
      while (peek().kind == TokenKind::directive) {
        std::string_view directive = take().text;
        if (directive == ".noreturn") prototype.signature.is_noreturn = true;
        else if (directive == ".abi_preserve" || directive == ".abi_preserve_control") expect_integer();
        else fail("unknown directive '" + std::string(directive) + "' of a prototype");
      }
      expect(";");
      function_->prototypes.push_back(std::move(prototype));
    } else {
      scopes_.define_label(*function_, name.text, name.line);
    }
  }

  // ---- instructions ------------------------------------------------------------------------------------------------

  void parse_instruction() {
    Instruction instruction;
    instruction.line = peek().line;
    if (accept("@")) {
      instruction.is_guard_negated = accept("!");
      std::string_view name = expect_word("a predicate");
      auto binding = scopes_.find(name);
      if (!binding || !binding->is_register || function_->registers[binding->index].type != Type::pred)
        fail("guard '" + std::string(name) + "' is not a predicate");
      instruction.guard = binding->index;
    }
    std::string_view word = expect_word("an instruction");
    size_t dot = word.find('.');
    instruction.opcode = word.substr(0, dot);
    while (dot != std::string_view::npos) {
      size_t next = word.find('.', dot + 1);
      instruction.modifiers.push_back(word.substr(dot + 1, next - dot - 1));
      dot = next;
    }
    if (instruction.opcode == "call") {
      parse_call_operands(instruction);
    } else if (!peek().is(";")) {
      do {
        instruction.operands.push_back(parse_operand(instruction));
      } while (accept(","));
    }
    expect(";");
    function_->body.push_back(std::move(instruction));
  }

  /// call (results), function, (arguments), prototype. Missing lists become empty vectors.
  void parse_call_operands(Instruction& call) {
    Operand results = {.kind = OperandKind::vector, .name = {}, .elements = {}};
    Operand arguments = results;
    if (peek().is("(")) {
      results = parse_list(call, "(", ")");
      expect(",");
    }
    Operand target = parse_operand(call);
    Operand prototype;
    if (accept(",")) {
      if (peek().is("(")) {
        arguments = parse_list(call, "(", ")");
        if (accept(",")) prototype = parse_operand(call);
      } else {
        prototype = parse_operand(call);
      }
    }
    call.operands = {std::move(results), std::move(target), std::move(arguments), std::move(prototype)};
  }

  Operand parse_list(const Instruction& owner, std::string_view open, std::string_view close) {
    Operand list = {.kind = OperandKind::vector, .name = {}, .elements = {}};
    expect(open);
    while (!peek().is(close)) {
      list.elements.push_back(parse_operand(owner));
      if (!accept(",")) break;
    }
    expect(close);
    return list;
  }

  Operand parse_operand(const Instruction& owner) {
    if (++operand_depth_ > nesting_max) fail("operands are nested too deeply");
    Operand operand = parse_one_operand(owner);
    --operand_depth_;
    return operand;
  }

  Operand parse_one_operand(const Instruction& owner) {
    if (peek().is("{")) return parse_list(owner, "{", "}");
    if (peek().is("[")) {
      Operand list = parse_list(owner, "[", "]");
      list.kind = OperandKind::address;
      if (list.elements.empty()) fail("empty address");
      return list;
    }
    if (accept("!")) {
      Operand operand = parse_operand(owner);
      if (operand.kind != OperandKind::reg) fail("'!' stands before predicates only");
      operand.is_negated = true;
      return operand;
    }
    if (starts_constant(lexer_)) return parse_constant_operand();
    Operand operand = parse_name(owner);
    if (accept("|")) {
      Operand second = parse_operand(owner);
      Operand pair = {.kind = OperandKind::pair, .name = {}, .elements = {}};
      pair.elements = {std::move(operand), std::move(second)};
      return pair;
    }
    if (peek().is("+") || peek().is("-")) {
      bool is_minus = take().is("-");
      int64_t offset = static_cast<int64_t>(expect_integer());
      operand.offset = is_minus ? -offset : offset;
    }
    return operand;
  }

  Operand parse_constant_operand() {
    Constant value = parse_constant(lexer_);
    Operand operand = {.is_unsigned = value.is_unsigned, .bits = value.bits, .name = {}, .elements = {}};
    switch (value.kind) {
      case Constant::Kind::integer: operand.kind = OperandKind::integer; break;
      case Constant::Kind::float32: operand.kind = OperandKind::float32; break;
      case Constant::Kind::float64: operand.kind = OperandKind::float64; break;
    }
    return operand;
  }

  Operand parse_name(const Instruction& owner) {
    uint32_t line = peek().line;
    std::string_view name = expect_word("an operand");
    Operand operand = {.kind = OperandKind::symbol, .name = name, .elements = {}};
    if (name == "_") {
      operand.kind = OperandKind::sink;
    } else if (owner.opcode == "bra") {
      operand.kind = OperandKind::label;
      operand.index = scopes_.mention_label(*function_, name, line);
    } else if (auto binding = scopes_.find(name)) {
      if (binding->vector_width > 1) return vector_register(*binding);
      operand.kind = binding->is_register ? OperandKind::reg : OperandKind::variable;
      operand.index = binding->index;
    } else if (auto element = vector_element(name)) {
      operand.kind = OperandKind::reg;
      operand.index = *element;
    } else if (name.front() == '%') {
      operand.kind = OperandKind::special;
    }
    return operand;
  }

  static Operand vector_register(const Scopes::Binding& binding) {
    Operand vector = {.kind = OperandKind::vector, .name = {}, .elements = {}};
    for (uint32_t i = 0; i < binding.vector_width; ++i)
      vector.elements.push_back({.kind = OperandKind::reg, .index = binding.index + i, .name = {}, .elements = {}});
    return vector;
  }

  /// v.x of a vector register v.
  std::optional<uint32_t> vector_element(std::string_view name) const {
    size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || dot + 2 != name.size()) return std::nullopt;
    auto binding = scopes_.find(name.substr(0, dot));
    if (!binding || !binding->is_register || binding->vector_width == 1) return std::nullopt;
    size_t element = std::string_view("xyzw").find(name.back());
    if (element == std::string_view::npos) element = std::string_view("rgba").find(name.back());
    if (element >= binding->vector_width) return std::nullopt;
    return binding->index + static_cast<uint32_t>(element);
  }

  Module& module_;
  Lexer lexer_;
  Function* function_ = nullptr;
  Scopes scopes_;
  int operand_depth_ = 0;
  uint64_t omitted_elements_ = 0;  // of all initializers
};

}  // namespace

std::unique_ptr<Module> parse(std::string text) {
  auto module = std::make_unique<Module>();
  module->text = std::move(text);
  Parser(*module).parse_module();
  return module;
}

}  // namespace fargpu::softgpu::ptx
