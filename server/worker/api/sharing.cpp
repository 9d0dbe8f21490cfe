// Memory and events that sessions of one host share.

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

ShareKey key_in(capnp::Data::Reader bytes) {
  const auto key = share_key(bytes);
  if (!key) throw ProtocolError("a key of another length than keys have");
  return *key;
}

CUresult tell(CUresult result, const Sharing::Shared& shared, Call& call) {
  if (result != CUDA_SUCCESS) return result;
  auto out = call.out<wire::Shared>();
  out.setKey(wire_of(shared.key));
  out.setBytes(shared.bytes);
  return result;
}

}  // namespace

Outcome shareMemory(Session& session, Call& call, wire::ShareMemory::Reader in) {
  Sharing::Shared shared;
  return tell(session.sharing().share_memory(in.getAddress(), shared), shared, call);
}

Outcome shareAllocation(Session& session, Call& call, wire::ShareAllocation::Reader,
                        Known<HandleKind::allocation> handle) {
  Sharing::Shared shared;
  return tell(session.sharing().share_allocation(handle.cuda(), shared), shared, call);
}

Outcome shareEvent(Session& session, Call& call, wire::ShareEvent::Reader, Known<HandleKind::event> event) {
  Sharing::Shared shared;
  return tell(session.sharing().share_event(event.value(), event.cuda(), shared), shared, call);
}

Outcome openSharedMemory(Session& session, Call& call, wire::OpenSharedMemory::Reader in) {
  int device = 0;
  const int here = session.contexts().driver_ordinal(session.contexts().find(call.id().context)->device);
  const CUresult result =
      session.sharing().open_memory(key_in(in.getKey()), in.getAddress(), in.getBytes(), here, device);
  if (result == CUDA_SUCCESS) call.out<wire::OpenSharedMemoryReply>().setDevice(device);
  return result;
}

Outcome importAllocation(Session& session, Call& call, wire::ImportAllocation::Reader in) {
  session.objects().handles().require_room(HandleKind::allocation);
  CUmemGenericAllocationHandle handle{};
  const CUresult result = session.sharing().import(key_in(in.getKey()), handle);
  if (result == CUDA_SUCCESS)
    call.out<wire::ImportAllocationReply>().setAllocation(
        session.objects().reveal(HandleKind::allocation, handle, call).value());
  return result;
}

Outcome openSharedEvent(Session& session, Call& call, wire::OpenSharedEvent::Reader in) {
  if (const CUresult bad = session.objects().check_adoption(HandleKind::event, in.getEvent()); bad != CUDA_SUCCESS)
    return bad;
  CUevent event{};
  const CUresult result = session.sharing().open_event(key_in(in.getKey()), event);
  if (result == CUDA_SUCCESS) session.objects().adopt(HandleKind::event, in.getEvent(), event, call);
  return result;
}

}  // namespace fargpu::server::hand
