#pragma once
// A stream that waits for the program.

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "harness.h"

/// Holds a stream by a function until this thread opens it, or for five seconds.
class Gate {
 public:
  explicit Gate(CUstream stream) { OK(cuLaunchHostFunc(stream, wait, this)); }
  void open() { open_ = true; }
  bool in_vain() const { return in_vain_; }

 private:
  static void CUDA_CB wait(void* pointer) {
    auto* const gate = static_cast<Gate*>(pointer);
    for (int i = 0; i < 5000 && !gate->open_; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gate->in_vain_ = !gate->open_;
  }
  std::atomic<bool> open_{false}, in_vain_{false};
};
