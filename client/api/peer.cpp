// Access between devices. CUDA Driver API, "Peer Context Memory Access".

#include "client/session/entry.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {

CUresult cuCtxEnablePeerAccess(Thread& thread, CUcontext peer, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = thread.context();
  Context* const other = process().find_context(peer);
  if (!context || !other) return CUDA_ERROR_INVALID_CONTEXT;
  if (context == other || context->session != other->session) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return session_of(thread).peers.enable(thread, session_of(thread).contexts.home(*context),
                                         session_of(thread).contexts.home(*other));
}

CUresult cuCtxDisablePeerAccess(Thread& thread, CUcontext peer) {
  Context* const context = thread.context();
  Context* const other = process().find_context(peer);
  if (!context || !other) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->session != other->session) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  return session_of(thread).peers.disable(thread, session_of(thread).contexts.home(*context),
                                          session_of(thread).contexts.home(*other));
}

CUresult cuDeviceCanAccessPeer(Thread&, int* can_access, CUdevice dev, CUdevice peer) {
  if (!can_access) return CUDA_ERROR_INVALID_VALUE;
  const Facts& facts = process().facts();
  if (!facts.device(dev) || !facts.device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can_access = facts.can_access(dev, peer);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(Thread&, int* value, CUdevice_P2PAttribute attrib, CUdevice from, CUdevice to) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const Facts& facts = process().facts();
  if (!facts.device(from) || !facts.device(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
  const auto peer = facts.peers.find({facts.device(from)->worker_ordinal, facts.device(to)->worker_ordinal});
  if (peer == facts.peers.end() || !peer->second.attributes.contains(attrib)) return CUDA_ERROR_INVALID_VALUE;
  *value = peer->second.attributes.at(attrib);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
