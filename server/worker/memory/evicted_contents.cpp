#include "evicted_contents.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

constexpr std::size_t chunk_bytes = 8u << 20;
constexpr std::size_t huge_page_bytes = 2u << 20;
constexpr unsigned threads_max = 8;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes; }

// What holds anything else mostly says so with its first bytes.
bool all_zeros(const std::byte* bytes, std::size_t count) {
  return bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

}  // namespace

/// What one thread copies with: a piece of pinned memory, and a stream in each context.
class EvictedContents::Copier {
 public:
  explicit Copier(DriverTable& driver) : driver_(driver) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  ~Copier() {
    for (const auto& [context, stream] : streams_) {
      driver_.cuCtxSetCurrent(context);
      driver_.cuStreamDestroy_v2(stream);
    }
    if (slot_) driver_.cuMemFreeHost(slot_);
    driver_.cuCtxSetCurrent(nullptr);
  }

  /// Makes a context current, with all that copies in it need.
  CUresult enter(CUcontext context) {
    if (context == current_) return CUDA_SUCCESS;
    CUresult result = driver_.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && !slot_)
      result = driver_.cuMemHostAlloc(&slot_, chunk_bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (result == CUDA_SUCCESS && !streams_.contains(context)) {
      CUstream stream = nullptr;
      result = driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      if (result == CUDA_SUCCESS) streams_[context] = stream;
    }
    if (result == CUDA_SUCCESS) current_ = context;
    return result;
  }
  std::byte* slot() const { return static_cast<std::byte*>(slot_); }
  CUstream stream() const { return streams_.at(current_); }
  /// Waits for what the stream was given.
  CUresult finish(CUresult given) { return given == CUDA_SUCCESS ? driver_.cuStreamSynchronize(stream()) : given; }

 private:
  DriverTable& driver_;
  CUcontext current_ = nullptr;
  std::map<CUcontext, CUstream> streams_;
  void* slot_ = nullptr;
};

EvictedContents::EvictedContents(DriverTable& driver, std::vector<Part> parts) : driver_(driver) {
  for (const Part& part : parts) bytes_ += rounded(part.bytes);
  if (bytes_ == 0) return;
  void* const memory =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw SystemError(std::string("addresses for evicted memory: ") + std::strerror(errno));
  memory_ = static_cast<std::byte*>(memory);
  ::madvise(memory_, bytes_, MADV_HUGEPAGE);  // fewer faults, where the kernel has such pages
  ::madvise(memory_, bytes_, MADV_DONTFORK);
  ::madvise(memory_, bytes_, MADV_DONTDUMP);
  std::byte* kept = memory_;
  for (const Part& part : parts) {
    for (std::uint64_t offset = 0; offset < part.bytes; offset += chunk_bytes)
      chunks_.push_back({.address = part.address + offset,
                         .context = part.context,
                         .bytes = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, part.bytes - offset)),
                         .kept = kept + offset});
    kept += rounded(part.bytes);
  }
}

EvictedContents::~EvictedContents() {
  if (memory_) ::munmap(memory_, bytes_);
}

CUresult EvictedContents::copy_out() { return run(&EvictedContents::take); }

CUresult EvictedContents::copy_back() { return run(&EvictedContents::give); }

CUresult EvictedContents::take(Copier& copier, Chunk& chunk) {
  const CUresult result =
      copier.finish(driver_.cuMemcpyDtoHAsync_v2(copier.slot(), chunk.address, chunk.bytes, copier.stream()));
  if (result != CUDA_SUCCESS) return result;
  chunk.zeros = all_zeros(copier.slot(), chunk.bytes);
  if (chunk.zeros) return result;
  std::memcpy(chunk.kept, copier.slot(), chunk.bytes);
  host_bytes_ += chunk.bytes;
  return result;
}

// New memory of a device may hold anything.
CUresult EvictedContents::give(Copier& copier, Chunk& chunk) {
  if (chunk.zeros) return copier.finish(driver_.cuMemsetD8Async(chunk.address, 0, chunk.bytes, copier.stream()));
  std::memcpy(copier.slot(), chunk.kept, chunk.bytes);
  return copier.finish(driver_.cuMemcpyHtoDAsync_v2(chunk.address, copier.slot(), chunk.bytes, copier.stream()));
}

// The calling thread is one of those that copy, so that one is enough where no more can be had.
CUresult EvictedContents::run(CUresult (EvictedContents::*copy)(Copier&, Chunk&)) {
  std::atomic<std::size_t> next{0};
  std::atomic<CUresult> failure{CUDA_SUCCESS};
  const auto work = [&] {
    Copier copier(driver_);
    for (std::size_t i = next++; i < chunks_.size() && failure == CUDA_SUCCESS; i = next++) {
      CUresult result = copier.enter(chunks_[i].context);
      if (result == CUDA_SUCCESS) result = (this->*copy)(copier, chunks_[i]);
      if (result != CUDA_SUCCESS) failure = result;
    }
  };
  const auto count = std::min<std::size_t>(
      {threads_max, std::max(1u, std::thread::hardware_concurrency() / 2), std::max<std::size_t>(1, chunks_.size())});
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(count);
    while (helpers.size() + 1 < count)
      helpers.emplace_back([&] {
        try {
          work();
        } catch (const std::bad_alloc&) {
          failure = CUDA_ERROR_OUT_OF_MEMORY;
        }
      });
  } catch (const std::system_error&) {  // no more threads
  }
  try {
    work();
  } catch (const std::bad_alloc&) {
    failure = CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (std::thread& helper : helpers) helper.join();
  return failure;
}

}  // namespace fargpu::server
