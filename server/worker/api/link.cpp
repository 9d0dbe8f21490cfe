// Linking of GPU code.

#include <cstring>

#include "protocol/image.h"
#include "protocol/image_hash.h"
#include "server/worker/code/jit_links.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// Null if there is no such link, or if it is in use: the driver wants its calls one after the other.
std::shared_ptr<JitLink> find(Session& session, std::uint64_t handle) {
  const auto found = session.code().links.find(handle);
  if (found == session.code().links.end() || !session.objects().handles().find(HandleKind::link, Handle(handle)) ||
      found->second->busy)
    return nullptr;
  return found->second;
}

// A driver can crash where a link is completed or destroyed in another context than the one in which it was made
// (measured; driver 580).
void enter_context_of(Session& session, const JitLink& link) {
  if (ContextState* const context = session.contexts().find(link.context)) session.contexts().make_current(*context);
}

Outcome run(Session& session, Call& call, std::shared_ptr<JitLink> link, std::function<CUresult()> work) {
  link->busy = true;
  enter_context_of(session, *link);
  return session.asides().run_on_link_thread(call, std::move(work), [link](CUresult result, MessageWriter& writer) {
    link->busy = false;
    auto out = writer.root<wire::LinkReply>();
    out.setKnown(true);
    link->options.tell(out);
    out.setLinkedBytes(link->linked_bytes);
    return result;
  });
}

}  // namespace

Outcome createLink(Session& session, Call& call, wire::CreateLink::Reader in) {
  session.objects().handles().require_room(HandleKind::link);
  auto link = std::make_shared<JitLink>();
  if (const CUresult bad = link->options.read(in.getJit(), session.host_budget()); bad != CUDA_SUCCESS) return bad;
  link->context = call.id().context;
  return session.asides().run_on_link_thread(
      call,
      [&driver = session.driver(), link] {
        return driver.cuLinkCreate_v2(link->options.count(), link->options.kinds(), link->options.values(),
                                      &link->state);
      },
      [&session, id = call.id(), link](CUresult result, MessageWriter& writer) {
        if (result != CUDA_SUCCESS) return result;
        if (!session.contexts().find(id.context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        Handle handle;
        try {
          handle = session.objects().introduce(HandleKind::link, link->state, id);
        } catch (const Handles::Exhausted&) {
          session.driver().cuLinkDestroy(link->state);
          throw;
        }
        session.code().links[handle.value()] = link;
        writer.root<wire::CreateLinkReply>().setLink(handle.value());
        return result;
      });
}

Outcome addToLink(Session& session, Call& call, wire::AddToLink::Reader in) {
  const std::shared_ptr<JitLink> link = find(session, in.getLink());
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  ImageHash hash;
  if (in.getHash().size() != hash.size() || in.getType() >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  JitInput told;
  if (const CUresult bad = told.options.read_values(in.getJit(), session.host_budget()); bad != CUDA_SUCCESS)
    return bad;
  std::memcpy(hash.data(), in.getHash().begin(), hash.size());
  const auto input = session.code().images.find(hash, in.getBytes());
  if (input.empty()) {
    call.out<wire::LinkReply>().setKnown(false);
    return CUDA_SUCCESS;
  }
  if ((in.getType() == CU_JIT_INPUT_CUBIN || in.getType() == CU_JIT_INPUT_FATBINARY) && !keeps_within(input))
    return CUDA_ERROR_INVALID_IMAGE;
  auto charge = HostCharge::take(session.host_budget(), sizeof(JitInput) + in.getName().size());
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  told.name = in.getName();
  told.held = session.code().images.hold(hash);
  told.charge = std::move(*charge);
  link->inputs.push_back(std::move(told));
  session.prints().note_printing();
  return run(session, call, link, [&driver = session.driver(), link, input, type = in.getType()] {
    JitInput& last = link->inputs.back();
    return driver.cuLinkAddData_v2(link->state, static_cast<CUjitInputType>(type), const_cast<std::byte*>(input.data()),
                                   input.size(), last.name.c_str(), last.options.count(), last.options.kinds(),
                                   last.options.values());
  });
}

Outcome completeLink(Session& session, Call& call, wire::CompleteLink::Reader in) {
  const std::shared_ptr<JitLink> link = find(session, in.getLink());
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  return run(session, call, link, [&driver = session.driver(), link] {
    void* linked = nullptr;
    std::size_t bytes = 0;
    const CUresult result = driver.cuLinkComplete(link->state, &linked, &bytes);
    if (result == CUDA_SUCCESS) {
      link->linked = static_cast<const std::byte*>(linked);
      link->linked_bytes = bytes;
    }
    return result;
  });
}

Outcome fetchLinked(Session& session, Call& call, wire::FetchLinked::Reader in) {
  const std::shared_ptr<JitLink> link = find(session, in.getLink());
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (!call.id().wants_reply) throw ProtocolError("a result of linking that nobody waits for");
  if (in.getOffset() > link->linked_bytes || in.getBytes() > link->linked_bytes - in.getOffset() ||
      in.getBytes() > limits::bulk_bytes_max)
    return CUDA_ERROR_INVALID_VALUE;
  // A copy: the link may be destroyed before the bytes have left.
  const std::byte* const begin = link->linked + in.getOffset();
  auto bytes = std::make_shared<std::vector<std::byte>>(begin, begin + in.getBytes());
  session.output().data(call.id(), *bytes, [bytes] {});
  return CUDA_SUCCESS;
}

Outcome cuLinkDestroy(Session& session, Call& call, wire::CuLinkDestroy::Reader, Known<HandleKind::link> state) {
  const std::shared_ptr<JitLink> link = find(session, state.value());
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  link->busy = true;
  enter_context_of(session, *link);
  return session.asides().run_on_link_thread(
      call, [&driver = session.driver(), link] { return driver.cuLinkDestroy(link->state); },
      [&session, link, state](CUresult result, MessageWriter&) {
        link->busy = false;
        if (result == CUDA_SUCCESS) session.objects().forget(state);
        return result;
      });
}

}  // namespace fargpu::server::hand
