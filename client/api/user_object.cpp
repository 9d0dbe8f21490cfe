// User objects: a destructor of the program's that runs when the last graph and the last owner have let go. CUDA Driver
// API, "Graph Management", cuUserObjectCreate.

#include <limits>

#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {

CUresult cuUserObjectCreate(Thread& thread, CUuserObject* out, void* object, CUhostFn destroy, unsigned references,
                            unsigned flags) {
  if (!out || !destroy || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  if (references == 0 || references > unsigned{std::numeric_limits<int>::max()}) return CUDA_ERROR_INVALID_VALUE;
  NewParts parts(session_of(thread).graph_parts);
  RemoteCall<wire::CreateUserObject> call(thread);
  if (!call) return call.error();
  auto in = call.in();
  in.setPart(parts.add(GraphParts::Function{destroy, object, true}));
  in.setReferences(references);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  parts.keep();
  *out = handle_cast<CUuserObject>(Handle(call.out().getObject()));
  return result;
}

}  // namespace fargpu::client::hand
