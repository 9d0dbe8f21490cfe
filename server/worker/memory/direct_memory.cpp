#include "direct_memory.h"

#include <string>
#include <utility>

#include "protocol/rdma/stable_memory.h"
#include "server/worker/base/driver_library.h"

namespace fargpu::server {
namespace {

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw DriverError(std::string(what) + ": the driver answers " + std::to_string(static_cast<int>(result)));
}

CUdeviceptr pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

/// What one allocation has, until it goes.
struct DirectMemory::Block {
  explicit Block(std::shared_ptr<DirectMemory> memory) : owner(std::move(memory)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    DriverTable& driver = owner->driver_;
    const auto* const begin = reinterpret_cast<const std::byte*>(address);
    if (known) {
      rdma::StableMemory::of_process().remove(begin);
      DeviceBytes::remove(begin);
    }
    if (mapped) driver.cuMemUnmap(address, bytes);
    if (handle) driver.cuMemRelease(handle);
    if (address) driver.cuMemAddressFree(address, bytes);
  }

  const std::shared_ptr<DirectMemory> owner;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  bool mapped = false, known = false;
};

DirectMemory::DirectMemory(DriverTable& driver, CUdevice device) : driver_(driver), device_(device) {
  const auto ask = [&](CUdevice_attribute attribute) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
  };
  const auto need = [&](CUdevice_attribute attribute, const char* what) {
    if (ask(attribute) == 0) throw DriverError(std::string("the driver says that this GPU has no ") + what);
  };
  need(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, "GPUDirect RDMA");
  need(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, "GPUDirect RDMA for memory that is mapped");
  need(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "dma-buf (driver, open kernel modules)");
  flushes_ = ask(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) < CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  if (flushes_ && (ask(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
                   CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0)
    throw DriverError("the driver has no way to make what a card writes visible to this GPU");
}

DirectMemory::~DirectMemory() { (void)leave_context(); }

std::shared_ptr<std::byte> DirectMemory::make(std::size_t bytes, bool sent) {
  const auto block = std::make_shared<Block>(shared_from_this());
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  prop.allocFlags.gpuDirectRDMACapable = 1;
  std::size_t grain = 0;
  check(driver_.cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "memory that a card can reach");
  if (grain == 0) throw DriverError("memory that a card can reach: the driver has no unit of it");
  block->bytes = (bytes + grain - 1) / grain * grain;
  check(driver_.cuMemCreate(&block->handle, block->bytes, &prop, 0), "memory that a card can reach");
  check(driver_.cuMemAddressReserve(&block->address, block->bytes, 0, 0, 0), "an address for memory of the GPU");
  check(driver_.cuMemMap(block->address, block->bytes, 0, block->handle, 0), "memory that a card can reach");
  block->mapped = true;
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check(driver_.cuMemSetAccess(block->address, block->bytes, &access, 1), "memory that a card can reach");
  auto* const begin = reinterpret_cast<std::byte*>(block->address);
  // Others may have had it before.
  if (!as_in_context([&] { return driver_.cuMemsetD8Async(block->address, 0, block->bytes, stream_); }))
    throw DriverError("memory that a card can reach cannot be written by the GPU");
  DeviceBytes::add({begin, block->bytes}, [this](DeviceBytes::Way way, void* to, const void* from, std::size_t size) {
    return copy(way, to, from, size);
  });
  block->known = true;
  if (sent) rdma::StableMemory::of_process().add(begin, block->bytes, rdma::MemoryKind::device);
  return {block, begin};
}

// Under the mutex.
CUresult DirectMemory::enter() {
  if (!context_) {
    const CUresult retained = driver_.cuDevicePrimaryCtxRetain(&context_, device_);
    if (retained != CUDA_SUCCESS) {
      context_ = nullptr;
      return retained;
    }
  }
  if (const CUresult entered = driver_.cuCtxSetCurrent(context_); entered != CUDA_SUCCESS) return entered;
  if (stream_) return CUDA_SUCCESS;
  // Beside the work of the program, which may never end.
  const CUresult made = driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (made != CUDA_SUCCESS) stream_ = nullptr;
  return made;
}

// What the calling thread has current stays so, and a capture of the program does not forbid what is done here.
template <class Work>
bool DirectMemory::as_in_context(Work&& work) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  const std::lock_guard lock(mutex_);
  CUcontext before = nullptr;
  driver_.cuCtxGetCurrent(&before);
  CUresult result = enter();
  if (result == CUDA_SUCCESS) {
    result = work();
    const CUresult done = driver_.cuStreamSynchronize(stream_);
    if (result == CUDA_SUCCESS) result = done;
  }
  driver_.cuCtxSetCurrent(before);
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  return result == CUDA_SUCCESS;
}

bool DirectMemory::copy(DeviceBytes::Way way, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return true;
  return as_in_context([&] {
    if (flushes_) {
      const CUresult flushed = driver_.cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
      if (flushed != CUDA_SUCCESS) return flushed;
    }
    switch (way) {
      case DeviceBytes::Way::in: return driver_.cuMemcpyHtoDAsync_v2(pointer(to), from, bytes, stream_);
      case DeviceBytes::Way::out: return driver_.cuMemcpyDtoHAsync_v2(to, pointer(from), bytes, stream_);
      case DeviceBytes::Way::within: break;
    }
    return driver_.cuMemcpyDtoDAsync_v2(pointer(to), pointer(from), bytes, stream_);
  });
}

std::unique_lock<std::mutex> DirectMemory::leave_context() {
  std::unique_lock lock(mutex_);
  if (!context_) return lock;
  if (stream_) {
    CUcontext before = nullptr;
    driver_.cuCtxGetCurrent(&before);
    if (driver_.cuCtxSetCurrent(context_) == CUDA_SUCCESS) driver_.cuStreamDestroy_v2(stream_);
    driver_.cuCtxSetCurrent(before);
  }
  stream_ = nullptr;
  context_ = nullptr;
  driver_.cuDevicePrimaryCtxRelease_v2(device_);
  return lock;
}

}  // namespace fargpu::server
