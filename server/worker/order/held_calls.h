#pragma once
// Frames of calls that cannot be executed yet: they come behind work that is held back, or wait for the session's turn.

#include <cstddef>
#include <memory>
#include <vector>

#include "protocol/frame.h"
#include "server/worker/call/call.h"
#include "server/worker/call/executor.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

/// A call that waits: its frame, on the heap.
struct HeldCall {
  FrameHeader header;
  std::vector<std::byte> message;
  std::vector<std::byte> bulk;
  TakenCredit credit;
  HostCharge charge;  ///< without credit
};

/// A call with credit has its room. What others keep is taken from the budget. Used by the executor only.
class HeldCalls {
 public:
  HeldCalls(HostBudget& budget, Executor& executor) : budget_(budget), executor_(executor) {}

  /// Null if there is no room for it, which there is for a call with credit.
  std::shared_ptr<HeldCall> copy(Call& call);
  /// Executes it, now that its time has come. `answered`: its program has been told already.
  void execute(HeldCall& held, bool answered = false);
  /// Answers it with success: there is nothing left to do.
  void leave_out(HeldCall& held);

 private:
  HostBudget& budget_;
  Executor& executor_;
};

}  // namespace fargpu::server
