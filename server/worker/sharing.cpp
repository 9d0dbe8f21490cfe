#include "sharing.h"

#include <sys/random.h>

#include <cstring>

#include "protocol/limits.h"

namespace fargpu::server {

struct Sharing::Name {
  Name(Exchange& exchange, std::shared_ptr<std::size_t> count, const Shared& shared)
      : shared(shared), exchange_(exchange), count_(std::move(count)) {
    ++*count_;
  }
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() {
    --*count_;
    exchange_.unshare(shared.key);
  }
  const Shared shared;

 private:
  Exchange& exchange_;
  const std::shared_ptr<std::size_t> count_;  // of all; memory may outlive whoever counts
};

CUresult Sharing::share_memory(std::uint64_t address, Shared& shared) {
  CUmemGenericAllocationHandle handle{};
  if (const CUresult bad = memory_.retain(address, handle); bad != CUDA_SUCCESS) return bad;
  const CUresult result = share_allocation(handle, shared);
  memory_.release(handle);
  return result;
}

CUresult Sharing::share_allocation(CUmemGenericAllocationHandle handle, Shared& shared) {
  Charge& charge = *memory_.charge_of(handle);
  auto name = std::static_pointer_cast<Name>(charge.companion);
  if (!name) {
    int descriptor = -1;
    if (const CUresult bad = memory_.export_to(handle, descriptor); bad != CUDA_SUCCESS) return bad;
    if (const CUresult bad = share({charge.device(), charge.bytes(), Descriptor(descriptor), {}}, name); bad != CUDA_SUCCESS) return bad;
    charge.companion = name;
  }
  shared = name->shared;
  return CUDA_SUCCESS;
}

CUresult Sharing::share_event(std::uint64_t handle, CUevent event, Shared& shared) {
  auto& name = events_[handle];
  if (!name) {
    CUipcEventHandle ours{};
    CUresult result = driver_.cuIpcGetEventHandle(&ours, event);
    const auto* const bytes = reinterpret_cast<const std::byte*>(ours.reserved);
    if (result == CUDA_SUCCESS) result = share({-1, 0, Descriptor(), {bytes, bytes + sizeof(ours.reserved)}}, name);
    if (result != CUDA_SUCCESS) {
      events_.erase(handle);
      return result;
    }
  }
  shared = name->shared;
  return CUDA_SUCCESS;
}

CUresult Sharing::share(const SharedThing& thing, std::shared_ptr<Name>& name) {
  if (!exchange_) return CUDA_ERROR_NOT_SUPPORTED;
  if (*count_ >= limits::shares_max) return CUDA_ERROR_OUT_OF_MEMORY;
  Shared shared{{}, thing.bytes};
  if (::getrandom(shared.key.data(), shared.key.size(), 0) != static_cast<ssize_t>(shared.key.size())) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!exchange_->share(shared.key, thing)) return CUDA_ERROR_OPERATING_SYSTEM;
  name = std::make_shared<Name>(*exchange_, count_, shared);
  return CUDA_SUCCESS;
}

CUresult Sharing::fetch(const ShareKey& key, bool memory, SharedThing& thing) {
  if (!exchange_) return CUDA_ERROR_NOT_SUPPORTED;
  auto found = exchange_->fetch(key);
  if (!found || memory != (found->descriptor.number() >= 0)) return CUDA_ERROR_INVALID_VALUE;
  thing = std::move(*found);
  return CUDA_SUCCESS;
}

CUresult Sharing::open_memory(const ShareKey& key, std::uint64_t address, std::uint64_t bytes, int for_device, int& device) {
  SharedThing thing;
  if (const CUresult bad = fetch(key, true, thing); bad != CUDA_SUCCESS) return bad;
  if (thing.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  CUmemGenericAllocationHandle handle{};
  if (const CUresult bad = memory_.import(thing.descriptor.number(), thing.device, bytes, handle); bad != CUDA_SUCCESS) return bad;
  CUresult result = memory_.map(address, bytes, 0, handle, device);
  memory_.release(handle);  // the mapping keeps the memory
  if (result != CUDA_SUCCESS) return result;
  result = memory_.set_access(address, bytes, device, true);
  if (result == CUDA_SUCCESS && for_device != device) result = memory_.set_access(address, bytes, for_device, true);
  if (result != CUDA_SUCCESS) memory_.unmap(address, bytes);
  return result;
}

CUresult Sharing::import(const ShareKey& key, CUmemGenericAllocationHandle& handle) {
  SharedThing thing;
  if (const CUresult bad = fetch(key, true, thing); bad != CUDA_SUCCESS) return bad;
  return memory_.import(thing.descriptor.number(), thing.device, thing.bytes, handle);
}

CUresult Sharing::open_event(const ShareKey& key, CUevent& event) {
  SharedThing thing;
  if (const CUresult bad = fetch(key, false, thing); bad != CUDA_SUCCESS) return bad;
  CUipcEventHandle handle{};
  if (thing.event.size() != sizeof(handle.reserved)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(handle.reserved, thing.event.data(), sizeof(handle.reserved));
  return driver_.cuIpcOpenEventHandle(&event, handle);
}

}  // namespace fargpu::server
