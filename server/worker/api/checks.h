#pragma once
// What the worker checks before it serves a call, beyond handles and addresses: named in the spec (`checks`), by two
// calls or more.

#include "server/worker/session/session.h"

namespace fargpu::server::checks {

/// Memory nodes are the session's own, of which the driver does not know: it cannot copy or change a graph that has
/// some. Of a graph, or of a node of one.
template <HandleKind kind>
CUresult no_memory_nodes(Session& session, const Known<kind>& part) {
  return session.graph_memory().any(session.objects().handles().root_of(part.handle())) ? CUDA_ERROR_NOT_SUPPORTED
                                                                                        : CUDA_SUCCESS;
}

/// A record may be held back yet, of which the driver does not know.
inline CUresult not_held(Session& session, const Known<HandleKind::event>& event) {
  return session.ordering().record_held(event.value()) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

}  // namespace fargpu::server::checks
