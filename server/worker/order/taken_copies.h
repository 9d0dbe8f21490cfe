#pragma once
// Copies that the program takes for done before the GPU has made them: no later work may come before them, on whatever
// stream.

#include <memory>
#include <vector>

#include "server/worker/objects/captures.h"
#include "driver_table.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// Stands for copies until it is recorded again. A wait for them may keep it longer than the context lives in which it
/// was made.
class OvertakeEvent {
 public:
  /// Null if the driver makes none.
  static std::shared_ptr<OvertakeEvent> make(DriverTable& driver);
  ~OvertakeEvent() { end(); }
  OvertakeEvent(const OvertakeEvent&) = delete;
  OvertakeEvent& operator=(const OvertakeEvent&) = delete;
  /// The context closes, and with it all that the event stands for is over.
  void end();
  CUevent cuda() const { return cuda_; }
  bool over() const;

 private:
  OvertakeEvent(DriverTable& driver, CUevent cuda) : driver_(driver), cuda_(cuda) {}

  DriverTable& driver_;
  CUevent cuda_;
};

/// Within a context. Used by the executor, in the stream's context.
class TakenCopies {
 public:
  TakenCopies(DriverTable& driver, const Captures& captures) : driver_(driver), captures_(captures) {}

  /// Later work on other streams must find what this stream was given until now.
  void forbid(StreamState& stream);
  /// Before work is given to a stream. One comparison while nothing was forbidden.
  void catch_up(StreamState& stream);
  /// What stands for all such copies of these contexts until now.
  using Events = std::vector<std::shared_ptr<OvertakeEvent>>;
  static Events forbidden_in(const std::vector<ContextState*>& contexts);
  /// Whether some of them are still to be made. Takes out what has been made.
  static bool forbidden(Events& events);
  static void context_closes(ContextState& context);

 private:
  DriverTable& driver_;
  const Captures& captures_;
};

}  // namespace fargpu::server
