#pragma once
// Copies that the program takes for done before the GPU has made them: no later work may come before them, on whatever
// stream.

#include <memory>
#include <vector>

#include "server/worker/objects/captures.h"
#include "driver_table.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// An event that stands for copies until it is recorded again. A wait for them may keep it longer than the context
/// lives in which it was made.
class CopyMark {
 public:
  /// Null if the driver makes none.
  static std::shared_ptr<CopyMark> make(DriverTable& driver);
  ~CopyMark() { end(); }
  CopyMark(const CopyMark&) = delete;
  CopyMark& operator=(const CopyMark&) = delete;
  /// The context closes, and with it all that the event stands for is over.
  void end();
  CUevent cuda() const { return cuda_; }
  bool over() const;

 private:
  CopyMark(DriverTable& driver, CUevent cuda) : driver_(driver), cuda_(cuda) {}

  DriverTable& driver_;
  CUevent cuda_;
};

/// Within a context. Used by the executor, in the stream's context.
class TakenCopies {
 public:
  TakenCopies(DriverTable& driver, const Captures& captures) : driver_(driver), captures_(captures) {}

  /// Marks what this stream was given until now: later work on other streams comes behind it.
  void mark(StreamState& stream);
  /// Before work is given to a stream. One comparison while there is no new mark.
  void catch_up(StreamState& stream);
  /// The marks of all such copies of these contexts until now.
  using Marks = std::vector<std::shared_ptr<CopyMark>>;
  static Marks marks_in(const std::vector<ContextState*>& contexts);
  /// Whether some of the copies are still to be made. Takes out the marks of those that have been.
  static bool any_open(Marks& marks);
  static void context_closes(ContextState& context);

 private:
  DriverTable& driver_;
  const Captures& captures_;
};

}  // namespace fargpu::server
