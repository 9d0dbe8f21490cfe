#pragma once
// Whether anything that is under way may still write memory of this process.

#include "callbacks.h"
#include "client/objects/graphs.h"
#include "stream_waits.h"
#include "whole_system_work.h"

namespace fargpu::client {

/// What of this process may still write its memory: host functions, values that the GPU waits for, graphs that are
/// launched; and the program itself, for which a kernel with operations of the whole system may be waiting.
class PendingWriters {
 public:
  PendingWriters(const Callbacks& callbacks, const StreamWaits& waits, const Graphs& graphs,
                 const WholeSystemWork& kernels)
      : callbacks_(callbacks), waits_(waits), graphs_(graphs), kernels_(kernels) {}
  bool functions() const { return callbacks_.any_waiting() || waits_.any(); }
  bool graphs() const { return graphs_.any_launched(); }
  bool kernels() const { return kernels_.under_way(); }
  bool any() const { return functions() || graphs(); }

 private:
  const Callbacks& callbacks_;
  const StreamWaits& waits_;
  const Graphs& graphs_;
  const WholeSystemWork& kernels_;
};

}  // namespace fargpu::client
