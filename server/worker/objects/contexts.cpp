#include "contexts.h"

#include <algorithm>
#include <utility>

#include "server/worker/memory/driver_memory.h"
#include "server/worker/memory/staging.h"

namespace fargpu::server {

Contexts::Contexts(DriverTable& driver, Ledger& ledger, HostBudget& budget, const std::vector<int>& devices,
                   const std::vector<std::vector<CUdevResource>>& parts, unsigned origin)
    : driver_(driver), ledger_(ledger), budget_(budget), devices_(devices), origin_(origin) {
  for (std::size_t device = 0; device < parts.size(); ++device)
    partitions_.push_back(std::make_unique<Partition>(driver, devices_[device], parts[device]));
}

int Contexts::driver_ordinal(int ordinal) const {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices_.size()) return -1;
  return devices_[static_cast<std::size_t>(ordinal)];
}

Partition* Contexts::partition(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < partitions_.size()
             ? partitions_[static_cast<std::size_t>(device)].get()
             : nullptr;
}

CUresult Contexts::open(Handle handle, int device, bool primary, unsigned flags, ContextState*& opened) {
  if (!handle.well_formed(HandleKind::context, origin_) || all_.contains(handle.id())) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = driver_ordinal(device);
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  Partition* const part = partition(device);
  if (!primary && part) return CUDA_ERROR_NOT_SUPPORTED;                       // it would be of the whole device
  if (primary && part && primary_of(device)) return CUDA_ERROR_INVALID_VALUE;  // it would be gone with the first
  auto state = std::make_unique<ContextState>();
  const unsigned kept = driver_flags(flags);
  CUresult result;
  if (primary) {
    driver_.cuDevicePrimaryCtxSetFlags_v2(ordinal, kept);  // fails, harmlessly, on an active one
    result = driver_.cuDevicePrimaryCtxRetain(&state->cuda, ordinal);
    if (result == CUDA_SUCCESS && part) {
      result = part->open();
      if (result != CUDA_SUCCESS) driver_.cuDevicePrimaryCtxRelease_v2(ordinal);
      state->whole = std::exchange(state->cuda, part->cuda());
      state->part = part->green();
    }
    if (result == CUDA_SUCCESS) result = driver_.cuCtxSetCurrent(state->cuda);
  } else {
    result = driver_.cuCtxCreate_v4(&state->cuda, nullptr, kept, ordinal);
    // Creating also pushes it: it stays current, and nothing else is ever on our stack.
  }
  if (result != CUDA_SUCCESS) return result;
  state->primary = primary;
  state->driver_memory = std::make_shared<DriverMemory>(driver_, ledger_, device, ordinal, ++driver_memories_);
  state->staging = std::make_shared<Staging>(driver_, free_staging_.expired() ? nullptr : &budget_);
  if (free_staging_.expired()) free_staging_ = state->staging;
  take(std::move(state), handle, device, opened);
  return result;
}

CUresult Contexts::open_green(Handle handle, int device, CUdevResourceDesc resources, ContextState*& opened) {
  if (!handle.well_formed(HandleKind::context, origin_) || all_.contains(handle.id())) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = driver_ordinal(device);
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  ContextState* const primary = primary_of(device);
  if (!primary || !make_current(*primary)) return CUDA_ERROR_INVALID_CONTEXT;
  auto state = std::make_unique<ContextState>();
  CUresult result = driver_.cuGreenCtxCreate(&state->green, resources, ordinal, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  state->driver_memory = primary->driver_memory;
  state->staging = primary->staging;
  result = driver_.cuCtxFromGreenCtx(&state->cuda, state->green);
  if (result == CUDA_SUCCESS) result = driver_.cuCtxSetCurrent(state->cuda);
  if (result != CUDA_SUCCESS) {
    driver_.cuGreenCtxDestroy(state->green);
    return result;
  }
  take(std::move(state), handle, device, opened);
  return result;
}

// It is current to the driver.
void Contexts::take(std::unique_ptr<ContextState> state, Handle handle, int device, ContextState*& opened) {
  state->id = handle.id();
  state->device = device;
  state->legacy = std::make_unique<StreamState>();
  state->legacy->cuda = CU_STREAM_LEGACY;
  state->legacy->context = state.get();
  state->legacy->handle = legacy_stream;
  state->streams.push_back(state->legacy.get());
  opened = current_ = state.get();
  all_[handle.id()] = std::move(state);
}

void Contexts::remove(ContextState& context) {
  if (current_ == &context) current_ = nullptr;
  all_.erase(context.id);
}

ContextState* Contexts::find(std::uint32_t id) const {
  const auto found = all_.find(id);
  return found == all_.end() ? nullptr : found->second.get();
}

ContextState* Contexts::find(Handle handle) const {
  return handle.well_formed(HandleKind::context, origin_) ? find(handle.id()) : nullptr;
}

ContextState* Contexts::on_device(int device) const {
  for (const auto& [id, context] : all_)
    if (driver_ordinal(context->device) == device) return context.get();
  return nullptr;
}

ContextState* Contexts::primary_of(int device) const {
  for (const auto& [id, context] : all_)
    if (context->primary && context->device == device) return context.get();
  return nullptr;
}

std::vector<ContextState*> Contexts::with_greens(ContextState& context) const {
  std::vector<ContextState*> found{&context};
  if (context.primary) {
    for (const auto& [id, other] : all_)
      if (other->green && other->device == context.device) found.push_back(other.get());
  }
  return found;
}

std::vector<ContextState*> Contexts::all() const {
  std::vector<ContextState*> found;
  for (const auto& [id, context] : all_) found.push_back(context.get());
  std::partition(found.begin(), found.end(), [](const ContextState* context) { return context->green != nullptr; });
  return found;
}

std::uint64_t Contexts::handle_of(CUcontext cuda) const {
  for (const auto& [id, context] : all_)
    if (context->cuda == cuda || (context->whole && context->whole == cuda))
      return Handle::from_id(HandleKind::context, id, origin_).value();
  return 0;
}

bool Contexts::make_current(ContextState& context) {
  if (&context == current_) return true;
  if (driver_.cuCtxSetCurrent(context.cuda) != CUDA_SUCCESS) return false;
  current_ = &context;
  return true;
}

void Contexts::enter(ContextState& context) {
  driver_.cuCtxSetCurrent(context.cuda);
  current_ = &context;
}

// A program whose first call launches a kernel has none yet; the one that it will have is made a moment early.
bool Contexts::borrow() {
  if (current_) return false;
  if (!all_.empty()) return make_current(*all_.begin()->second);
  if (Partition* const part = partition(0))
    return part->open() == CUDA_SUCCESS && driver_.cuCtxSetCurrent(part->cuda()) == CUDA_SUCCESS;
  CUcontext primary = nullptr;
  return driver_.cuDevicePrimaryCtxRetain(&primary, devices_.front()) == CUDA_SUCCESS &&
         driver_.cuCtxSetCurrent(primary) == CUDA_SUCCESS;
}

StreamState* Contexts::stream(std::uint64_t handle, std::uint32_t context) const {
  if (handle == legacy_stream) {
    const ContextState* const owner = find(context);
    return owner ? owner->legacy.get() : nullptr;
  }
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Contexts::add_stream(std::uint64_t handle, CUstream cuda, ContextState& owner, bool apart) {
  auto state = std::make_unique<StreamState>();
  state->cuda = cuda;
  state->context = &owner;
  state->handle = handle;
  unsigned flags = 0;
  driver_.cuStreamGetFlags(cuda, &flags);
  state->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  state->apart = apart;
  state->number = state->blocking ? 0 : ++stream_numbers_;
  owner.streams.push_back(state.get());
  streams_[handle] = std::move(state);
}

void Contexts::remove_stream(StreamState& stream) {
  if (stream.handle == legacy_stream) return;
  std::erase(stream.context->streams, &stream);
  if (stream.handle != 0) streams_.erase(stream.handle);
  else retired_.erase(stream.retirement);
}

std::uint64_t Contexts::retire_stream(StreamState& stream) {
  const auto found = streams_.find(stream.handle);
  stream.handle = 0;
  stream.retirement = ++retirements_;
  retired_[stream.retirement] = std::move(found->second);
  streams_.erase(found);
  return retirements_;
}

StreamState* Contexts::retired(std::uint64_t number) const {
  const auto found = retired_.find(number);
  return found == retired_.end() ? nullptr : found->second.get();
}

}  // namespace fargpu::server
