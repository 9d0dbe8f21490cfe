// Facts about devices that are other ones for a program on another machine.

#include <vector>

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {

// The driver checks the arguments. What it says is of the GPU's link to its own host, and the program's memory is
// behind a network, over which no atomic access reaches.
Outcome cuDeviceGetHostAtomicCapabilities(Session& session, Call& call,
                                          wire::CuDeviceGetHostAtomicCapabilities::Reader in) {
  const auto list = in.getOperations();
  std::vector<CUatomicOperation> operations(list_size(list.size()));
  for (unsigned i = 0; i < operations.size(); ++i) operations[i] = static_cast<CUatomicOperation>(list[i]);
  if (operations.size() != list_elements(in.getCount())) return CUDA_ERROR_INVALID_VALUE;
  std::vector<unsigned> capabilities(operations.size());
  const CUresult result = session.driver().cuDeviceGetHostAtomicCapabilities(
      capabilities.data(), operations.data(), static_cast<unsigned>(operations.size()), in.getDev());
  if (result == CUDA_SUCCESS)
    call.out<wire::CuDeviceGetHostAtomicCapabilitiesReply>().initCapabilities(static_cast<unsigned>(operations.size()));
  return result;
}

}  // namespace fargpu::server::hand
