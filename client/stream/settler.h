#pragma once
// Waiting for work, as parts below Waits ask for it.

#include <cuda.h>

namespace fargpu::client {

class Thread;
struct Context;
struct Stream;

class Settler {
 public:
  virtual ~Settler() = default;
  /// Waits for everything given to the context, where the program did not ask for a wait: captures do not mind it.
  virtual CUresult settle(Thread& thread, Context& context) = 0;
  /// Waits for everything given to the stream, where the program did not ask for a wait.
  virtual CUresult settle(Thread& thread, Stream& stream) = 0;
  /// Waits for everything given to any context, likewise.
  virtual CUresult settle_all(Thread& thread) = 0;
  /// Waits for everything that new work on the stream would come behind: of a stream that waits for the legacy one,
  /// also for what that was given.
  virtual CUresult settle_before_work(Thread& thread, Stream& stream) = 0;
  /// Copies in have been taken for done because nobody but later work of their context would notice. From now on others
  /// may, another context or process: waits for all of them.
  virtual void settle_taken(Thread& thread) = 0;
  /// The program learns that work is complete: what it saw of memory while that was under way may be old. All waits
  /// here end with it.
  virtual void after_work(Thread& thread) = 0;
};

}  // namespace fargpu::client
