#pragma once
// Pinned memory that kernels use and that is too large to be compared with what the worker has whenever something may
// have changed.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <span>

#include "paged_memory.h"

namespace fargpu::client {

/// Blocks of the host window. The worker has the memory that kernels use; what the program sees are pages of ours.
/// Unlike managed memory it may be used by both sides at the same time: what the program touches while the GPU works is
/// renewed now and then.
class HostPages final : public PagedMemory {
 public:
  HostPages(const Parts& parts, const Window& window);

  /// Memory of the program's that the worker has room for by now, page-aligned: it keeps its contents. False if there
  /// is no room. `known`: what both sides knew to be there last, if the worker has contents already.
  bool adopt(Context& context, std::uint64_t base, std::uint64_t bytes, std::span<const std::byte> known = {});
  /// It is gone.
  void forsake(std::uint64_t base);

 private:
  void send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) override;
  void fetch_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) override;
  bool send_changes(Thread& thread, Block& block, std::uint64_t offset, std::span<const std::byte> known) override;
  void touched_early() override { renew_.notify_one(); }
  void ask_behind_changes(Thread& thread) override;
  CUresult read(Thread& thread, std::uint64_t address, std::span<std::byte> into);
  void keep_renewing();

  std::condition_variable renew_;
  bool renewing_ = false;
  std::uint64_t changed_ = 0;  // a word of the block whose changes were sent last
};

}  // namespace fargpu::client
