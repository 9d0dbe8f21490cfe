// User objects, and who owns references of them.

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {

Outcome createUserObject(Session& session, Call& call, wire::CreateUserObject::Reader in) {
  if (in.getReferences() == 0) return CUDA_ERROR_INVALID_VALUE;
  CUuserObject object{};
  if (const CUresult bad = session.graph_parts().add(session.driver(), in.getPart(), {}, 0, object); bad != CUDA_SUCCESS) return bad;
  const Handle handle = session.objects().introduce(HandleKind::userobject, object, call);
  session.user_objects().add(in.getPart(), handle, in.getReferences());
  call.out<wire::CreateUserObjectReply>().setObject(handle.value());
  return CUDA_SUCCESS;
}

namespace {

bool known(Session& session, HandleKind kind, std::uint64_t value) {
  return session.objects().handles().find(kind, Handle(value)) != nullptr;
}

}  // namespace

Outcome cuUserObjectRetain(Session& session, Call&, wire::CuUserObjectRetain::Reader in) {
  if (!known(session, HandleKind::userobject, in.getObject())) return Objects::invalid(HandleKind::userobject);
  return session.user_objects().retain(Handle(in.getObject()), in.getCount());
}

Outcome cuUserObjectRelease(Session& session, Call&, wire::CuUserObjectRelease::Reader in) {
  if (!known(session, HandleKind::userobject, in.getObject())) return Objects::invalid(HandleKind::userobject);
  return session.user_objects().release(Handle(in.getObject()), in.getCount());
}

Outcome cuGraphRetainUserObject(Session& session, Call&, wire::CuGraphRetainUserObject::Reader in) {
  if (!known(session, HandleKind::graph, in.getGraph())) return Objects::invalid(HandleKind::graph);
  if (!known(session, HandleKind::userobject, in.getObject())) return Objects::invalid(HandleKind::userobject);
  return session.user_objects().graph_retain(Handle(in.getGraph()), Handle(in.getObject()), in.getCount(), in.getFlags());
}

Outcome cuGraphReleaseUserObject(Session& session, Call&, wire::CuGraphReleaseUserObject::Reader in) {
  if (!known(session, HandleKind::graph, in.getGraph())) return Objects::invalid(HandleKind::graph);
  if (!known(session, HandleKind::userobject, in.getObject())) return Objects::invalid(HandleKind::userobject);
  return session.user_objects().graph_release(Handle(in.getGraph()), Handle(in.getObject()), in.getCount());
}

}  // namespace fargpu::server::hand
