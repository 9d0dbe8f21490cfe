#pragma once
// Faults of the program on pages that are not here at present.

#include <cstddef>

namespace fargpu::client {

class WatchedPages;

/// From now on faults on its pages are its own; they may be those of a memory of each kind (see Watched). Others go to
/// whatever handled SIGSEGV before. Called again, it takes its place anew from a handler that was installed meanwhile,
/// and passes faults on to that one. The memory must live as long as the process.
void watch_faults(WatchedPages& memory, std::size_t kind);

}  // namespace fargpu::client
