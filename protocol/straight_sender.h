#pragma once
// A channel that can send bytes from where they lie, without a copy of its own.

#include "channel.h"

namespace fargpu {

class StraightSender {
 public:
  virtual ~StraightSender() = default;
  /// For the thread that sends: these bytes, if they are sent next, stay as they are until needs() says that they are
  /// not needed. None: no more is lent.
  virtual void lend(Channel::Bytes bytes) = 0;
  /// Whether some of these bytes are still on their way.
  virtual bool needs(Channel::Bytes bytes) = 0;
  /// Whether what is sent, and what is received into, may lie in memory of a GPU (device_bytes.h). Others touch it with
  /// the processor.
  virtual bool takes_device_bytes() const = 0;
};

}  // namespace fargpu
