#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

#include "exec/routine.h"
#include "exec/warp.h"

namespace fargpu::softgpu {

/// Frames of the warps of one block, kept for reuse by routine.
class FramePool {
 public:
  /// A frame with all registers zero, so that programs that read one before writing it behave the
  /// same each time.
  Frame* acquire(const Routine& routine) {
    std::vector<Frame*>& idle = idle_[&routine];
    Frame* frame;
    if (idle.empty()) {
      store_.push_back(std::make_unique<Storage>(routine.frame_bytes));
      frame = &store_.back()->frame;
    } else {
      frame = idle.back();
      idle.pop_back();
    }
    std::byte* registers = frame->registers;
    *frame = {.routine = &routine, .registers = registers};
    std::memset(registers, 0, routine.frame_bytes);
    return frame;
  }

  void release(Frame* frame) { idle_[frame->routine].push_back(frame); }

  /// Takes back every frame, also those of lanes that were stopped on the way.
  void reset() {
    idle_.clear();
    for (auto& storage : store_)
      if (storage->frame.routine != nullptr) idle_[storage->frame.routine].push_back(&storage->frame);
  }

 private:
  struct Storage {
    explicit Storage(uint32_t bytes) : registers(new (std::align_val_t(64)) std::byte[bytes + 64]) {
      frame.registers = registers.get();
    }
    struct Delete {
      void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
    };
    Frame frame;
    std::unique_ptr<std::byte[], Delete> registers;
  };
  std::vector<std::unique_ptr<Storage>> store_;
  std::unordered_map<const Routine*, std::vector<Frame*>> idle_;
};

}  // namespace fargpu::softgpu
