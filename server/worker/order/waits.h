#pragma once
// Waiting for the GPU: for all work that a stream, a context or every context was given until now, be it held back
// still.

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "completions.h"
#include "server/worker/objects/captures.h"
#include "server/worker/objects/contexts.h"
#include "ordering.h"

namespace fargpu::server {

/// Used by the executor only.
class Waits {
 public:
  Waits(Ordering& ordering, Contexts& contexts, const Captures& captures, Completions& completions)
      : ordering_(ordering), contexts_(contexts), captures_(captures), completions_(completions) {}

  /// Calls done(result) when the GPU has completed all work that was given to a stream, a context, or any context, by
  /// now. Of a stream that is captured, what it was given before.
  void when_passed(StreamState& stream, Completions::Done done);
  void when_passed(ContextState& context, Completions::Done done);
  void when_all_passed(Completions::Done done);
  /// As when_passed, for all that work given to the stream now would come behind, be it on other streams. Memory that
  /// is freed on the stream has no user then.
  void when_free(StreamState& stream, Completions::Done done);
  /// How many wait for what streams were given before they were captured.
  std::size_t behind_captures() const { return static_cast<std::size_t>(behind_captures_.use_count()) - 1; }

 private:
  void when_passed(StreamState& stream, Completions::Done done, bool for_new_work);
  void when_passed(ContextState& context, Completions::Done done, bool others);
  static bool comes_behind_others(const StreamState& stream);

  Ordering& ordering_;
  Contexts& contexts_;
  const Captures& captures_;
  Completions& completions_;
  const std::shared_ptr<const char> behind_captures_ = std::make_shared<const char>();  // each of them has it, too
};

}  // namespace fargpu::server
