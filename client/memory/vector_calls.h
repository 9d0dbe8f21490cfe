#pragma once
// System calls with vectors of buffers (readv, sendmsg and their like) on memory whose pages come and go. A filter as
// in system_calls.cpp sees the address of the vector and not what is in it, so it would have to stop every such call,
// in programs that are started from here too. Instead the libraries of this process call functions of ours, which touch
// the pages first. Their calls that block signals leave those unblocked by which pages come.

namespace fargpu::client {

/// From now on such calls work in this process where a library makes them by the C library's functions and was loaded
/// before now. Has little to do when nothing was loaded since the last time. Threads: any; never within a fault.
void watch_vector_calls();

}  // namespace fargpu::client
