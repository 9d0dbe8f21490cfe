#include "cases.h"

#include <cstdio>
#include <cstring>

namespace answers {

namespace {

std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%lu" : "0x%lx", value);
  return text;
}

class Cases {
 public:
  explicit Cases(const Call& call) : call_(call) {}

  std::vector<Case> all() {
    add({}, "right");
    if (call_.twin) return std::move(made_);
    Case twice;
    twice.state = State::twice;
    // An object that is gone is no longer anybody's.
    twice.undefined = call_.ends && has(Role::handle);
    add(twice, "twice");
    for (unsigned p = 0; p < call_.count; ++p) {
      if (!call_.parameters[p].kept) change(p);
    }
    for (const char* const* more = call_.more; more && *more; ++more) {
      const std::string text(*more);
      const std::size_t equals = text.find('=');
      for (unsigned p = 0; p < call_.count; ++p) {
        if (text.substr(0, equals) != call_.parameters[p].name) continue;
        Case c;
        c.change = Change::fixture;
        c.parameter = p;
        c.fixture = text.substr(equals + 1);
        add(c, text);
      }
    }
    states();
    return std::move(made_);
  }

 private:
  bool has(Role role) const {
    for (unsigned p = 0; p < call_.count; ++p) {
      if (call_.parameters[p].role == role) return true;
    }
    return false;
  }
  bool names_stream() const {
    for (unsigned p = 0; p < call_.count; ++p) {
      if (!std::strcmp(call_.parameters[p].fixture, "stream")) return true;
    }
    return false;
  }

  void add(Case c, std::string name) {
    c.call = &call_;
    c.name = std::move(name) + (c.undefined ? "?" : "");
    made_.push_back(std::move(c));
  }

  void value(unsigned p, const Field* field, std::uint64_t v) {
    Case c;
    c.change = Change::value;
    c.parameter = p;
    c.field = field;
    c.value = v;
    add(c, place(p, field) + "=" + hex(v));
  }
  void null(unsigned p, const Field* field) {
    Case c;
    c.change = Change::null;
    c.parameter = p;
    c.field = field;
    add(c, place(p, field) + "=null");
  }
  void undefined(unsigned p, Change change, const char* name) {
    Case c;
    c.change = change;
    c.parameter = p;
    c.undefined = true;
    add(c, place(p, nullptr) + "=" + name);
  }
  std::string place(unsigned p, const Field* field) const {
    return field ? std::string(call_.parameters[p].name) + "." + field->name : call_.parameters[p].name;
  }

  /// Makes a number wrong in the ways of what it is.
  void number(unsigned p, const Field* field, Role role, std::uint32_t bytes, const std::int64_t* choices,
              std::uint32_t choice_count) {
    const std::uint64_t all = bytes >= 8 ? ~0ull : (1ull << (bytes * 8)) - 1;
    switch (role) {
      case Role::size:
        for (const std::uint64_t v : {0ull, 1ull, 3ull, 1ull << 46, ~0ull}) value(p, field, v & all);
        break;
      case Role::integer:
        for (const std::uint64_t v : {0ull, 1ull, 3ull, ~0ull}) value(p, field, v & all);
        break;
      case Role::flags:
        for (unsigned bit = 0; bit < 9; ++bit) value(p, field, 1ull << bit);
        value(p, field, 1ull << (bytes * 8 - 1));
        break;
      case Role::device:
        for (const std::uint64_t v : {std::uint64_t{99}, all}) value(p, field, v);
        break;
      case Role::choice: {
        std::int64_t last = 0;
        for (std::uint32_t i = 0; i < choice_count; ++i) {
          value(p, field, static_cast<std::uint64_t>(choices[i]) & all);
          last = choices[i] > last ? choices[i] : last;
        }
        value(p, field, static_cast<std::uint64_t>(last + 1) & all);
        value(p, field, all);
        break;
      }
      default: break;
    }
  }

  void change(unsigned p) {
    const Parameter& parameter = call_.parameters[p];
    switch (parameter.role) {
      case Role::handle:
        null(p, nullptr);
        undefined(p, Change::another, "another");
        undefined(p, Change::stale, "stale");
        break;
      case Role::address: {
        null(p, nullptr);
        value(p, nullptr, 0x1234000);
        Case c;
        c.change = Change::added;
        c.parameter = p;
        c.value = 1;
        add(c, place(p, nullptr) + "+1");
        break;
      }
      case Role::text: {
        null(p, nullptr);
        for (const char* text : {"", "/nothing/at/all"}) {
          Case c;
          c.change = Change::text;
          c.parameter = p;
          c.fixture = text;
          add(c, place(p, nullptr) + "=\"" + text + "\"");
        }
        break;
      }
      case Role::function: null(p, nullptr); break;
      case Role::pointer:
        null(p, nullptr);
        if (!std::strcmp(parameter.fixture, "out") || !std::strcmp(parameter.fixture, "none")) break;
        for (std::uint32_t f = 0; f < parameter.field_count; ++f) {
          const Field& field = parameter.fields[f];
          if (field.role == Role::handle || field.role == Role::address || field.role == Role::pointer ||
              field.role == Role::function || field.role == Role::text) {
            null(p, &field);
          } else {
            number(p, &field, field.role, field.bytes, field.choices, field.choice_count);
          }
        }
        break;
      default: number(p, nullptr, parameter.role, parameter.bytes, parameter.choices, parameter.choice_count); break;
    }
  }

  void states() {
    const auto state = [&](State s, const char* name, unsigned detail = 0) {
      Case c;
      c.state = s;
      c.detail = detail;
      add(c, name);
    };
    state(State::no_context, "no context");
    state(State::destroyed_context, "destroyed context");
    state(State::other_context, "other context");
    state(State::other_device, "other device");
    const char* const modes[] = {"global", "thread_local", "relaxed"};
    for (unsigned mode = 0; mode < 3; ++mode) {
      state(State::capture, (std::string("capture ") + modes[mode]).c_str(), mode);
      state(State::capture_elsewhere, (std::string("capture elsewhere ") + modes[mode]).c_str(), mode);
      if (names_stream()) state(State::captured, (std::string("captured ") + modes[mode]).c_str(), mode);
    }
    state(State::host_function, "host function");
    state(State::forked, "forked");
    state(State::before_init, "before init");
    state(State::after_error, "after error");
  }

  const Call& call_;
  std::vector<Case> made_;
};

}  // namespace

std::vector<Case> cases_of(const Call& call) { return Cases(call).all(); }

}  // namespace answers
