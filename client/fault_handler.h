#pragma once
// Faults of the program on pages of managed memory.

namespace fargpu::client {

class ManagedMemory;

/// From now on faults on its pages are its own. Others go to whatever handled SIGSEGV before. Called again, it takes its place anew
/// from a handler that was installed meanwhile, and passes faults on to that one. The memory must live as long as the process.
void watch_faults(ManagedMemory& memory);

}  // namespace fargpu::client
