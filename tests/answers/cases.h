#pragma once
// The cases of a call: right ones, in every state that a thread and its context can be in, and wrong ones, one
// parameter at a time.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "call.h"

namespace answers {

/// What is going on when the call is made.
enum class State : std::uint8_t {
  plain,
  twice,              ///< again, with the same arguments
  no_context,         ///< the thread has none
  destroyed_context,  ///< the thread's is destroyed
  other_context,      ///< the thread's is another one of the same device
  other_device,       ///< the thread's is one of another device
  capture,            ///< the thread captures a stream, which the call does not name; detail: the mode
  captured,           ///< the thread captures the call's own stream; detail: the mode
  capture_elsewhere,  ///< another thread captures a stream; detail: the mode
  host_function,      ///< the call is made by a host function of a stream
  forked,             ///< in a child of the process
  before_init,        ///< nothing was initialised
  after_error,        ///< after a kernel wrote to an address that is not mapped
};

/// How one argument, or one field of a struct that it points to, is made wrong.
enum class Change : std::uint8_t {
  none,
  value,    ///< a number instead
  added,    ///< a number added
  null,     ///< no pointer, no handle
  fixture,  ///< another fixture: of the names that calls.toml has for the parameter
  another,  ///< an object of another kind
  stale,    ///< an object that is gone
  text,     ///< another string
};

struct Case {
  const Call* call;
  State state = State::plain;
  unsigned detail = 0;
  Change change = Change::none;
  unsigned parameter = 0;
  const Field* field = nullptr;
  std::uint64_t value = 0;
  std::string fixture;
  std::string name;
  /// What the driver does is not defined: it need not answer the same twice, and may crash. Such a call is made only
  /// where any error is the right answer.
  bool undefined = false;
};

/// All cases of a call, in the order in which they are made.
std::vector<Case> cases_of(const Call& call);

}  // namespace answers
