#include "evicted_contents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <thread>

#include "protocol/errors.h"
#include "server/worker/base/pages.h"

namespace fargpu::server {
namespace {

constexpr std::size_t page_bytes = 4096, huge_page_bytes = 2u << 20;
constexpr unsigned threads_max = 12;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes; }

// What holds anything else mostly says so with its first bytes.
bool all_zeros(const std::byte* bytes, std::size_t count) {
  return bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

}  // namespace

/// What one thread copies with: a piece of pinned memory, and a stream in each context.
class EvictedContents::Copier {
 public:
  Copier(DriverTable& driver, std::size_t slot_bytes) : driver_(driver), slot_bytes_(slot_bytes) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  ~Copier() {
    for (const auto& [context, stream] : streams_) {
      driver_.cuCtxSetCurrent(context);
      driver_.cuStreamDestroy_v2(stream);
    }
    if (!slot_.empty() && driver_.cuMemHostUnregister(slot_.bytes().data()) != CUDA_SUCCESS)
      slot_.keep_place();  // for the driver they are pinned yet
    driver_.cuCtxSetCurrent(nullptr);
  }

  /// Makes a context current, with all that copies in it need.
  CUresult enter(CUcontext context) {
    if (context == current_) return CUDA_SUCCESS;
    CUresult result = driver_.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && slot_.empty()) result = make_slot();
    if (result == CUDA_SUCCESS && !streams_.contains(context)) {
      CUstream stream = nullptr;
      result = driver_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      if (result == CUDA_SUCCESS) streams_[context] = stream;
    }
    if (result == CUDA_SUCCESS) current_ = context;
    return result;
  }
  std::byte* slot() const { return slot_.bytes().data(); }
  CUstream stream() const { return streams_.at(current_); }
  /// Waits for what the stream was given.
  CUresult finish(CUresult given) { return given == CUDA_SUCCESS ? driver_.cuStreamSynchronize(stream()) : given; }

 private:
  // Memory of our own is pinned in a tenth of the time in which the driver makes pinned memory, one thread at a time.
  // Each thread touches its own before.
  CUresult make_slot() {
    Pages pages(slot_bytes_);
    if (pages.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    ::madvise(pages.bytes().data(), slot_bytes_, MADV_HUGEPAGE);
    for (std::size_t at = 0; at < slot_bytes_; at += page_bytes) pages.bytes()[at] = std::byte{0};
    const CUresult result =
        driver_.cuMemHostRegister_v2(pages.bytes().data(), slot_bytes_, CU_MEMHOSTREGISTER_PORTABLE);
    if (result == CUDA_SUCCESS) slot_ = std::move(pages);
    return result;
  }

  DriverTable& driver_;
  const std::size_t slot_bytes_;
  CUcontext current_ = nullptr;
  std::map<CUcontext, CUstream> streams_;
  Pages slot_;
};

EvictedInMemory::EvictedInMemory(std::uint64_t bytes) : bytes_(bytes) {
  void* const memory =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw SystemError(std::string("addresses for evicted memory: ") + std::strerror(errno));
  memory_ = static_cast<std::byte*>(memory);
  ::madvise(memory_, bytes_, MADV_HUGEPAGE);  // fewer faults, where the kernel has such pages
  ::madvise(memory_, bytes_, MADV_DONTFORK);
  ::madvise(memory_, bytes_, MADV_DONTDUMP);
}

EvictedInMemory::~EvictedInMemory() { ::munmap(memory_, bytes_); }

void EvictedInMemory::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  std::memcpy(memory_ + offset, bytes.data(), bytes.size());
}

void EvictedInMemory::read(std::uint64_t offset, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), memory_ + offset, bytes.size());
}

void EvictedInMemory::give_up(std::uint64_t offset, std::uint64_t bytes) {
  ::madvise(memory_ + offset, bytes, MADV_FREE);
}

void EvictedOnDisk::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError(std::string("the file for evicted memory: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void EvictedOnDisk::read(std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw SystemError(std::string("the file for evicted memory: ") + (count == 0 ? "it ends" : std::strerror(errno)));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void EvictedOnDisk::give_up(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > 0)
    ::fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
}

std::uint64_t EvictedContents::store_bytes(const std::vector<Part>& parts) {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += rounded(part.bytes);
  return bytes;
}

EvictedContents::EvictedContents(DriverTable& driver, EvictedStore& store, std::uint64_t offset,
                                 const std::vector<Part>& parts)
    : driver_(driver), store_(store) {
  std::uint64_t kept = offset;
  for (const Part& part : parts) {
    for (std::uint64_t offset = 0; offset < part.bytes; offset += chunk_bytes) {
      const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, part.bytes - offset));
      chunks_.push_back(
          {.address = part.address + offset, .context = part.context, .bytes = bytes, .kept = kept + offset});
      largest_ = std::max(largest_, bytes);
    }
    kept += rounded(part.bytes);
  }
}

CUresult EvictedContents::copy_out() { return run(&EvictedContents::take); }

std::vector<std::unique_ptr<EvictedContents>> EvictedContents::divide(std::size_t parts, const PartOf& part_of) {
  std::vector<std::unique_ptr<EvictedContents>> divided;
  while (divided.size() < parts) divided.emplace_back(new EvictedContents(driver_, store_));
  for (const Chunk& chunk : chunks_) {
    const auto number = part_of(chunk.address);
    if (!number) continue;
    EvictedContents& part = *divided[*number];
    part.chunks_.push_back(chunk);
    part.largest_ = std::max(part.largest_, chunk.bytes);
    if (!chunk.zeros) part.kept_bytes_ += chunk.bytes;
  }
  chunks_.clear();
  kept_bytes_ = 0;
  return divided;
}

std::pair<std::uint64_t, std::uint64_t> EvictedContents::range() const {
  std::uint64_t first = chunks_.empty() ? 0 : chunks_.front().kept, end = first;
  for (const Chunk& chunk : chunks_) {
    first = std::min(first, chunk.kept);
    end = std::max(end, chunk.kept + rounded(chunk.bytes));
  }
  return {first, end - first};
}

CUresult EvictedContents::copy_back() { return run(&EvictedContents::give); }

CUresult EvictedContents::take(Copier& copier, Chunk& chunk) {
  const CUresult result =
      copier.finish(driver_.cuMemcpyDtoHAsync_v2(copier.slot(), chunk.address, chunk.bytes, copier.stream()));
  if (result != CUDA_SUCCESS) return result;
  chunk.zeros = all_zeros(copier.slot(), chunk.bytes);
  if (chunk.zeros) return CUDA_SUCCESS;
  store_.write(chunk.kept, {copier.slot(), chunk.bytes});
  kept_bytes_ += chunk.bytes;
  return CUDA_SUCCESS;
}

// New memory of a device may hold anything.
CUresult EvictedContents::give(Copier& copier, Chunk& chunk) {
  if (chunk.zeros) return copier.finish(driver_.cuMemsetD8Async(chunk.address, 0, chunk.bytes, copier.stream()));
  store_.read(chunk.kept, {copier.slot(), chunk.bytes});
  return copier.finish(driver_.cuMemcpyHtoDAsync_v2(chunk.address, copier.slot(), chunk.bytes, copier.stream()));
}

// The calling thread is one of those that copy, and one is enough: others that find no memory leave the work to it.
CUresult EvictedContents::run(Copy copy) {
  std::atomic<std::size_t> next{0}, done{0};
  std::atomic<CUresult> failure{CUDA_SUCCESS}, scarce{CUDA_SUCCESS};
  const auto work = [&] {
    try {
      Copier copier(driver_, largest_);
      if (const CUresult result = copier.enter(chunks_.front().context); result != CUDA_SUCCESS) {
        scarce = result;
        return;
      }
      for (std::size_t i = next++; i < chunks_.size() && failure == CUDA_SUCCESS; i = next++) {
        CUresult result = copier.enter(chunks_[i].context);
        if (result == CUDA_SUCCESS) result = (this->*copy)(copier, chunks_[i]);
        if (result != CUDA_SUCCESS) failure = result;
        else ++done;
      }
    } catch (const SystemError& error) {
      const std::lock_guard lock(mutex_);
      store_error_ = error.what();
      failure = CUDA_ERROR_OPERATING_SYSTEM;
    } catch (const std::exception&) {  // most likely there was no memory
      failure = CUDA_ERROR_OUT_OF_MEMORY;
    }
  };
  if (chunks_.empty()) return CUDA_SUCCESS;
  const auto count =
      std::min<std::size_t>({threads_max, std::max(1u, std::thread::hardware_concurrency() * 3 / 4), chunks_.size()});
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < count) helpers.emplace_back(work);
  } catch (const std::exception&) {  // no more threads
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure == CUDA_SUCCESS && done < chunks_.size()) return scarce;
  return failure;
}

}  // namespace fargpu::server
