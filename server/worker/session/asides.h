#pragma once
// Calls with work that may take long, which runs beside the executor: image loads, JIT, filling memory with zeros.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "driver_table.h"
#include "protocol/message.h"
#include "residency.h"
#include "server/worker/call/blocking_calls.h"
#include "server/worker/call/call.h"
#include "server/worker/call/prints.h"
#include "server/worker/call/retries.h"
#include "server/worker/objects/contexts.h"
#include "server/worker/order/ordering.h"

namespace fargpu::server {

/// Used by the executor only. `work` alone runs on another thread, one of a BlockingCalls, with its context current
/// there; all else that is given here runs on the executor. No lock is held while any of it runs.
class Asides {
 public:
  using Work = std::function<CUresult()>;
  /// Gets what `work` returned, and the writer of the reply. Its result is the answer.
  using Settle = std::function<CUresult(CUresult, MessageWriter&)>;
  /// Answers a call behind what the client is owed of complete work.
  using Answer = std::function<void(const CallId&, CUresult, std::vector<std::byte>)>;
  /// Carries out a call by this job, in the order in which it came.
  using InOrder = std::function<void(const std::function<void()>&)>;

  /// `link_calls` has one thread.
  Asides(DriverTable& driver, Contexts& contexts, Ordering& ordering, Residency& residency, Retries& retries,
         Prints& prints, BlockingCalls& blocking_calls, BlockingCalls& link_calls, Answer answer, InOrder in_order)
      : driver_(driver),
        contexts_(contexts),
        ordering_(ordering),
        residency_(residency),
        retries_(retries),
        prints_(prints),
        blocking_calls_(blocking_calls),
        link_calls_(link_calls),
        answer_(std::move(answer)),
        in_order_(std::move(in_order)) {}
  Asides(const Asides&) = delete;
  Asides& operator=(const Asides&) = delete;

  /// What happens where the driver has no room for it, and others make some.
  enum class Repeats {
    nothing,  ///< it fails
    work,     ///< `work` runs again: it uses nothing that the program may destroy meanwhile
    call,     ///< the call is carried out anew
  };
  /// Runs `work` beside the executor, in the call's context; then `settle`, on the executor.
  Outcome run(Call& call, Work work, Settle settle, Repeats repeats = Repeats::nothing);
  /// As run(), on the one thread that makes all calls with links of images: programs make those of a link on one
  /// thread, and a driver need not expect more.
  Outcome run_on_link_thread(Call& call, Work work, Settle settle);
  /// Runs `work` beside the executor in a context; then `done` on the executor, which carries out the call anew.
  Outcome run_first(Call& call, ContextState& context, std::function<void()> work, std::function<void()> done);
  /// Whether the call is carried out anew behind run_first(), or for the last time, without room for it.
  bool tries_last() const { return behind_first_ || residency_.last_try(); }

  /// Work beside the executor uses the context, 0 for one of its own, as long as this lives: it is not closed before.
  /// The executor lets go of it too.
  std::shared_ptr<const void> keep_open(std::uint32_t context);
  /// Nothing if no work beside the executor uses the context, or green ones of it. Otherwise the call is carried out
  /// anew when that is so.
  std::optional<Outcome> behind(Call& call, ContextState& context);

 private:
  struct Aside;
  /// `within`: the context of the work; null without one.
  Outcome start(Call& call, const ContextState* within, BlockingCalls& threads, Work work, Settle settle,
                Repeats repeats);
  bool any_in(ContextState& context) const;
  void make(const std::shared_ptr<Aside>& aside);
  void repeat(const std::shared_ptr<Aside>& aside);
  void settle(const Aside& aside);

  DriverTable& driver_;
  Contexts& contexts_;
  Ordering& ordering_;
  Residency& residency_;
  Retries& retries_;
  Prints& prints_;
  BlockingCalls& blocking_calls_;
  BlockingCalls& link_calls_;
  const Answer answer_;
  const InOrder in_order_;

  std::multiset<std::uint32_t> used_;  // contexts that work beside the executor uses
  bool behind_first_ = false;          // a call is carried out anew behind run_first()
};

}  // namespace fargpu::server
