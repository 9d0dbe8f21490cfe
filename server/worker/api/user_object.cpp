// User objects, and the owners of their references.

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {

Outcome createUserObject(Session& session, Call& call, wire::CreateUserObject::Reader in) {
  if (in.getReferences() == 0) return CUDA_ERROR_INVALID_VALUE;
  session.objects().handles().require_room(HandleKind::userobject);
  CUuserObject object{};
  if (const CUresult bad = session.graph_parts().add(session.driver(), in.getPart(), {}, 0, object);
      bad != CUDA_SUCCESS)
    return bad;
  const Handle handle = session.objects().introduce(HandleKind::userobject, object, call);
  session.user_objects().add(in.getPart(), handle, in.getReferences());
  call.out<wire::CreateUserObjectReply>().setObject(handle.value());
  return CUDA_SUCCESS;
}

Outcome cuUserObjectRetain(Session& session, Call&, wire::CuUserObjectRetain::Reader in,
                           Known<HandleKind::userobject> object) {
  return session.user_objects().retain(object.handle(), in.getCount());
}

Outcome cuUserObjectRelease(Session& session, Call&, wire::CuUserObjectRelease::Reader in,
                            Known<HandleKind::userobject> object) {
  return session.user_objects().release(object.handle(), in.getCount());
}

Outcome cuGraphRetainUserObject(Session& session, Call&, wire::CuGraphRetainUserObject::Reader in,
                                Known<HandleKind::graph> graph, Known<HandleKind::userobject> object) {
  return session.user_objects().graph_retain(graph.handle(), object.handle(), in.getCount(), in.getFlags());
}

Outcome cuGraphReleaseUserObject(Session& session, Call&, wire::CuGraphReleaseUserObject::Reader in,
                                 Known<HandleKind::graph> graph, Known<HandleKind::userobject> object) {
  return session.user_objects().graph_release(graph.handle(), object.handle(), in.getCount());
}

}  // namespace fargpu::server::hand
