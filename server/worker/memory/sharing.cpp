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
    if (shared.bytes != 0) exchange_.unshare_memory(shared.key);
    else exchange_.unshare_event(shared.key);
  }
  const Shared shared;

 private:
  Exchange& exchange_;
  const std::shared_ptr<std::size_t> count_;  // of all; memory may outlive the counting object
};

struct Sharing::Loan {
  Loan(Exchange& exchange, const ShareKey& key) : key(key), exchange_(exchange) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { exchange_.let_go(key); }
  const ShareKey key;

 private:
  Exchange& exchange_;
};

struct Sharing::Companion {
  std::unique_ptr<Loan> loan;
  std::shared_ptr<Name> name;
};

Sharing::Companion& Sharing::companion_of(Charge& charge) {
  if (!charge.companion) charge.companion = std::make_shared<Companion>();
  return *std::static_pointer_cast<Companion>(charge.companion);
}

CUresult Sharing::share_memory(std::uint64_t address, Shared& shared) {
  CUmemGenericAllocationHandle handle{};
  if (const CUresult bad = memory_.retain(address, handle); bad != CUDA_SUCCESS) return bad;
  const CUresult result = share_allocation(handle, shared);
  memory_.release(handle);
  return result;
}

CUresult Sharing::share_allocation(CUmemGenericAllocationHandle handle, Shared& shared) {
  Charge& charge = *memory_.charge_of(handle);
  Companion& companion = companion_of(charge);
  if (!companion.name) {
    int descriptor = -1;
    if (const CUresult bad = memory_.export_to(handle, descriptor); bad != CUDA_SUCCESS) return bad;
    const ShareKey* const came_by = companion.loan ? &companion.loan->key : nullptr;
    const CUresult bad = share({charge.device(), charge.bytes(), Descriptor(descriptor), {}}, came_by, companion.name);
    if (bad != CUDA_SUCCESS) return bad;
  }
  shared = companion.name->shared;
  return CUDA_SUCCESS;
}

CUresult Sharing::share_event(std::uint64_t handle, CUevent event, Shared& shared) {
  auto& name = events_[handle];
  if (!name) {
    CUipcEventHandle ours{};
    CUresult result = driver_.cuIpcGetEventHandle(&ours, event);
    const auto* const bytes = reinterpret_cast<const std::byte*>(ours.reserved);
    if (result == CUDA_SUCCESS)
      result = share({-1, 0, Descriptor(), {bytes, bytes + sizeof(ours.reserved)}}, nullptr, name);
    if (result != CUDA_SUCCESS) {
      events_.erase(handle);
      return result;
    }
  }
  shared = name->shared;
  return CUDA_SUCCESS;
}

CUresult Sharing::share(const SharedThing& thing, const ShareKey* came_by, std::shared_ptr<Name>& name) {
  if (!exchange_) return CUDA_ERROR_NOT_SUPPORTED;
  if (*count_ >= limits::shares_max) return CUDA_ERROR_OUT_OF_MEMORY;
  Shared shared{{}, thing.bytes};
  if (::getrandom(shared.key.data(), shared.key.size(), 0) != static_cast<ssize_t>(shared.key.size()))
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (!exchange_->share(shared.key, thing, came_by)) return CUDA_ERROR_OPERATING_SYSTEM;
  name = std::make_shared<Name>(*exchange_, count_, shared);
  return CUDA_SUCCESS;
}

CUresult Sharing::fetch(const ShareKey& key, bool memory, SharedThing& thing) {
  if (!exchange_) return CUDA_ERROR_NOT_SUPPORTED;
  auto found = exchange_->fetch(key);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (memory != (found->descriptor.number() >= 0)) {
    if (found->device >= 0) exchange_->let_go(key);
    return CUDA_ERROR_INVALID_VALUE;
  }
  thing = std::move(*found);
  return CUDA_SUCCESS;
}

CUresult Sharing::open_memory(const ShareKey& key, std::uint64_t address, std::uint64_t bytes, int for_device,
                              int& device) {
  SharedThing thing;
  if (const CUresult bad = fetch(key, true, thing); bad != CUDA_SUCCESS) return bad;
  if (thing.bytes != bytes) {
    exchange_->let_go(key);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUmemGenericAllocationHandle handle{};
  if (const CUresult bad = import(key, thing, handle); bad != CUDA_SUCCESS) return bad;
  CUresult result = memory_.map(address, bytes, 0, handle, device);
  memory_.release(handle);  // the mapping keeps the memory
  if (result != CUDA_SUCCESS) return result;
  result = memory_.open(address, for_device);
  if (result != CUDA_SUCCESS) memory_.unmap(address, bytes);
  return result;
}

CUresult Sharing::import(const ShareKey& key, CUmemGenericAllocationHandle& handle) {
  SharedThing thing;
  if (const CUresult bad = fetch(key, true, thing); bad != CUDA_SUCCESS) return bad;
  return import(key, thing, handle);
}

// The handle may be that of memory which the session has already, of its own or by another key: by that it is held, and
// paid for.
CUresult Sharing::import(const ShareKey& key, const SharedThing& thing, CUmemGenericAllocationHandle& handle) {
  if (const CUresult bad = memory_.import(thing.descriptor.number(), thing.device, thing.bytes, handle);
      bad != CUDA_SUCCESS) {
    exchange_->let_go(key);
    return bad;
  }
  Charge& charge = *memory_.charge_of(handle);
  Companion& companion = companion_of(charge);
  if (charge.charged() || companion.loan) exchange_->let_go(key);
  else companion.loan = std::make_unique<Loan>(*exchange_, key);
  return CUDA_SUCCESS;
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
