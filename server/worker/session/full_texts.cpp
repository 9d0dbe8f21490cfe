#include "full_texts.h"

#include "protocol/text.h"
#include "server/worker/objects/handles.h"

namespace fargpu::server {

std::string full_text(HostBudget::Bound bound, std::uint64_t bytes_max) {
  const std::string bytes = std::to_string(bytes_max) + " bytes of the GPU host's memory ";
  if (bound == HostBudget::Bound::session)
    return "the session may take " + bytes + "(host_bytes_max of its fargpud) and wants more: CUDA_ERROR_OUT_OF_MEMORY";
  return "all sessions of the lease may take " + bytes +
         "(host_memory of the tenant) and want more: CUDA_ERROR_OUT_OF_MEMORY";
}

std::string full_text(const Ledger::Refusal& refusal) {
  using Bound = Ledger::Bound;
  const std::string asked = bytes_text(refusal.asked) + " of device memory is asked for, ";
  std::string bound, repair;
  switch (refusal.bound) {
    case Bound::lease:
      bound = "the lease has " + bytes_text(refusal.left) + " of its " + bytes_text(refusal.limit) + " left";
      repair = "ask for more (`fargpu run -m`, FARGPU_MEM)";
      break;
    case Bound::tenant:
      bound = "the tenant has " + bytes_text(refusal.left) + " left of the " + bytes_text(refusal.limit) +
              " for its leases without memory of their own (`memory` of the tenant)";
      repair = "try later, or ask the administrator of the host for a larger quota";
      break;
    case Bound::device:
      bound = "and device " + std::to_string(refusal.device) + " has no room for it, whatever the lease may hold";
      repair =
          "try later, ask for less or, where others hold it, for memory that is kept for the job (`fargpu run -m`)";
      break;
  }
  return asked + bound + "; " + repair + ": CUDA_ERROR_OUT_OF_MEMORY";
}

std::string exhausted_text() {
  return "the session has more objects of one kind, such as nodes of graphs, than it may name (" +
         std::to_string(Handles::worker_handles_max) + "): CUDA_ERROR_OUT_OF_MEMORY";
}

}  // namespace fargpu::server
