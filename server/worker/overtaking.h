#pragma once
// Copies that the program takes for done before the GPU has made them: no later work may come before them, on whatever stream.

#include "captures.h"
#include "driver_table.h"
#include "streams.h"

namespace fargpu::server {

/// Within a context. Used by the executor, in the stream's context.
class Overtaking {
 public:
  Overtaking(DriverTable& driver, const Captures& captures) : driver_(driver), captures_(captures) {}

  /// Later work on other streams must find what this stream was given until now.
  void forbid(StreamState& stream);
  /// Before work is given to a stream. One comparison while nothing was forbidden.
  void catch_up(StreamState& stream);

 private:
  DriverTable& driver_;
  const Captures& captures_;
};

}  // namespace fargpu::server
