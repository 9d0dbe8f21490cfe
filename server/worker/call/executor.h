#pragma once
// What the parts of a session ask of the loop that executes its calls.

#include <cuda.h>

#include <span>

#include "call.h"
#include "dispatch.h"

namespace fargpu::server {

class Executor {
 public:
  /// Executes a call that had to wait, now that its time has come.
  virtual void execute(const Service& service, Call& call) = 0;
  /// Sends the answer of a call that was answered later, or reports its failure if nobody waits.
  virtual void finish(const CallId& call, CUresult result, std::span<const std::byte> reply = {}) = 0;
  /// The call is not carried out, and this is its answer.
  virtual void refuse(Call& call, CUresult result) = 0;
  /// The bytes of a call have been copied: gives them back if staging memory is where they were received.
  virtual void give_bulk(Call& call) = 0;

 protected:
  ~Executor() = default;
};

}  // namespace fargpu::server
