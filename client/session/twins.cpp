#include "twins.h"

#include "session.h"

namespace fargpu::client {

void Twins::loaded(Handle library, Source source) {
  const auto group = std::make_shared<Group>();
  group->source = std::move(source);
  group->libraries[library.origin()] = library;
  const std::lock_guard lock(mutex_);
  groups_[library.value()] = group;
}

std::shared_ptr<Twins::Group> Twins::group_of(Handle library) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(library.value());
  return found == groups_.end() ? nullptr : found->second;
}

CUresult Twins::twin_library(Thread& thread, const Session& session, Handle& library) {
  const auto group = group_of(library);
  if (!group) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(group->loading);
  auto& twin = group->libraries[session.terms.origin];
  if (!twin) {
    if (const CUresult bad = group->source.load(thread, twin); bad != CUDA_SUCCESS) {
      group->libraries.erase(session.terms.origin);
      return bad;
    }
    const std::lock_guard all(mutex_);
    groups_[twin.value()] = group;
  }
  library = twin;
  return CUDA_SUCCESS;
}

CUresult Twins::twin_kernel(Thread& thread, const Session& session, const Session& of, Handle& kernel) {
  const Function* const known = of.functions.find_kernel(handle_cast<CUkernel>(kernel));
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  Handle twin = known->owner;
  const auto group = group_of(twin);
  if (!group) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = twin_library(thread, session, twin); bad != CUDA_SUCCESS) return bad;
  return group->source.find(thread, twin, known->name, kernel);
}

std::vector<Handle> Twins::take(Handle library) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(library.value());
  if (found == groups_.end()) return {library};
  const auto group = found->second;
  std::vector<Handle> all;
  for (const auto& [origin, twin] : group->libraries) {
    all.push_back(twin);
    groups_.erase(twin.value());
  }
  return all;
}

}  // namespace fargpu::client
