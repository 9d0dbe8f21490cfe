#pragma once
// JIT options as programs give them: an array of kinds beside one of values, some of which are places to write to.

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "operations.capnp.h"

namespace fargpu::client {

struct JitOptions {
  unsigned count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;

  bool valid() const { return count == 0 || options; }
  /// What tells the program of this one time, or is the size of where that goes.
  static bool told_once(CUjit_option option) {
    return is_output(option) || option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
           option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
  }
  /// An option whose value is an address of the program travels as its kind only.
  void write(capnp::List<wire::Option>::Builder list) const {
    for (unsigned i = 0; i < count; ++i) {
      list[i].setOption(options[i]);
      if (values && !is_output(options[i])) list[i].setValue(reinterpret_cast<std::uintptr_t>(values[i]));
    }
  }

 private:
  static bool is_output(CUjit_option option) {
    return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER || option == CU_JIT_WALL_TIME;
  }
};

/// Where what the driver wrote goes in the program: it must be written to while the program lends those places.
class JitOutputs {
 public:
  JitOutputs() = default;
  explicit JitOutputs(const JitOptions& jit)
      : info_(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES),
        error_(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES),
        wall_(slot_of(jit, CU_JIT_WALL_TIME)),
        threads_(slot_of(jit, CU_JIT_THREADS_PER_BLOCK)) {}

  /// `Reply` has the driver's logs, the time it took, and the threads of a block that it compiled for.
  template <class Reply>
  void store(const Reply& reply) const {
    info_.store(reply.getInfoLog());
    error_.store(reply.getErrorLog());
    // The values themselves, not places that they point to.
    const float milliseconds = reply.getWallMilliseconds();
    if (wall_) std::memcpy(wall_, &milliseconds, sizeof(milliseconds));
    const unsigned threads = reply.getThreadsPerBlock();
    if (threads_ && threads > 0) std::memcpy(threads_, &threads, sizeof(threads));
  }

 private:
  static void** slot_of(const JitOptions& jit, CUjit_option wanted) {
    if (!jit.values) return nullptr;
    CUjit_option* const end = jit.options + jit.count;
    CUjit_option* const found = std::find(jit.options, end, wanted);
    return found == end ? nullptr : jit.values + (found - jit.options);
  }

  /// The driver's log goes into the program's buffer, and how much of it there was into the slot of the buffer's size.
  struct Log {
    Log() = default;
    Log(const JitOptions& jit, CUjit_option buffer, CUjit_option size) : size_slot(slot_of(jit, size)) {
      void** const text_slot = slot_of(jit, buffer);
      if (text_slot) text = static_cast<char*>(*text_slot);
      if (size_slot) room = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(*size_slot));
    }
    void store(capnp::Data::Reader log) const {
      if (!text || !size_slot) return;
      const std::size_t length = std::min(log.size(), room);
      if (length > 0) std::memcpy(text, log.begin(), length);  // no log has no place either
      if (length < room) text[length] = '\0';
      *size_slot = reinterpret_cast<void*>(length);
    }
    char* text = nullptr;
    void** size_slot = nullptr;
    std::size_t room = 0;
  };

  Log info_;
  Log error_;
  void** wall_ = nullptr;
  void** threads_ = nullptr;
};

}  // namespace fargpu::client
