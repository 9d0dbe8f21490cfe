#include "objects.h"

#include "protocol/errors.h"

namespace fargpu::server {

bool Objects::resolve_raw(HandleKind kind, std::uint64_t value, std::uint64_t& raw) {
  if (kind == HandleKind::stream && value == legacy_stream) {
    raw = reinterpret_cast<std::uint64_t>(CU_STREAM_LEGACY);
    return true;
  }
  if (kind == HandleKind::context) {
    const ContextState* const found = contexts_.find(Handle(value));
    if (found) raw = reinterpret_cast<std::uint64_t>(found->cuda);
    return found != nullptr;
  }
  const Handles::Entry* entry = device_visible(kind)
                                    ? handles_.find_visible(kind, Handle(value), home_of(contexts_.current()))
                                    : handles_.find(kind, Handle(value));
  if (!entry && kind == HandleKind::function) entry = handles_.find(HandleKind::kernel, Handle(value));
  if (entry) raw = entry->value;
  return entry != nullptr;
}

// Under which context an object that kernels see is known: one that is made in a green context belongs to the primary
// one. 0 for no context.
std::uint32_t Objects::home_of(const ContextState* context) const {
  return context ? contexts_.home_of(*context).id : 0;
}

CUresult Objects::check_adoption(HandleKind kind, std::uint64_t value) {
  // A client that reuses a live handle does not follow the protocol.
  if (!handles_.adoptable(kind, Handle(value))) throw ProtocolError("a new object was given a handle that is not free");
  return CUDA_SUCCESS;
}

void Objects::adopt_raw(HandleKind kind, std::uint64_t value, std::uint64_t raw, const Call& call) {
  handles_.adopt(Handle(value), raw, lives_with_context(kind) ? call.id().context : 0);
  if (kind == HandleKind::stream)
    contexts_.add_stream(value, reinterpret_cast<CUstream>(raw), *contexts_.find(call.id().context),
                         /*apart=*/call.id().never_held && !call.id().wants_reply);
}

void Objects::add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  memory_.add_foreign(address, bytes);
  globals_.emplace(owner, address);  // again and again, if the client asks so
}

void Objects::drop_globals(std::uint64_t owner) {
  const auto first = globals_.lower_bound({owner, 0}), last = globals_.lower_bound({owner + 1, 0});
  for (auto it = first; it != last; ++it) memory_.remove_foreign(it->second);
  globals_.erase(first, last);
}

void Objects::hide(HandleKind kind, std::uint64_t value) {
  if (Handle(value).kind() == kind) handles_.hide(Handle(value), [this](Handle gone) { drop_globals(gone.value()); });
}

void Objects::forget(HandleKind kind, std::uint64_t value) {
  if (device_visible(kind)) handles_.forget_visible(kind, Handle(value), home_of(contexts_.current()));
  else handles_.forget(kind, Handle(value));
  drop_globals(value);
  charges_.erase(value);
  if (kind == HandleKind::library || kind == HandleKind::module) loaded_images_.erase(value);
  forgotten_(kind, value);
}

std::vector<std::shared_ptr<const void>> Objects::context_closes(std::uint32_t context) {
  std::vector<std::shared_ptr<const void>> kept;
  for (auto& [handle, image] : loaded_images_) image.entered.erase(context);
  for (unsigned kind = 1; kind <= handle_kind_max; ++kind) {
    std::vector<Handle> gone;
    handles_.for_each(static_cast<HandleKind>(kind), [&](Handle handle, Handles::Entry& entry) {
      if (entry.context == context) gone.push_back(handle);
    });
    for (const Handle handle : gone) {
      if (const auto image = loaded_images_.find(handle.value()); image != loaded_images_.end())
        kept.push_back(std::move(image->second.kept));
      if (kind != static_cast<unsigned>(HandleKind::stream)) forget(static_cast<HandleKind>(kind), handle.value());
      else handles_.forget(HandleKind::stream, handle);
    }
  }
  return kept;
}

void Objects::green_closes(std::uint32_t context, std::uint32_t heir) {
  for (auto& [handle, image] : loaded_images_) image.entered.erase(context);
  for (unsigned kind = 1; kind <= handle_kind_max; ++kind) {
    std::vector<Handle> streams;
    handles_.for_each(static_cast<HandleKind>(kind), [&](Handle handle, Handles::Entry& entry) {
      if (entry.context != context) return;
      if (kind == static_cast<unsigned>(HandleKind::stream)) streams.push_back(handle);
      else entry.context = heir;
    });
    for (const Handle stream : streams) handles_.forget(HandleKind::stream, stream);
  }
}

}  // namespace fargpu::server
