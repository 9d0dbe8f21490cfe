#pragma once
// Known contents: bytes that the worker's host has kept, and that need not travel again. They are named by their hash;
// docs/internals/wire-format.md says how. This is what the two sides say of them on a lane.

#include <cstdint>

#include "content_name.h"

namespace fargpu {

/// Which bytes of which transfer: row_chunks.h.
struct Chunk {
  std::uint32_t transfer = 0;
  std::uint32_t number = 0;
};

/// A frame of a lane without bulk bytes. The numbers are those of the frames.
struct ContentWord {
  enum class Kind : std::uint16_t {
    named = 2,    ///< client: the chunk has these contents. It is answered, and if they are unknown the bytes follow
    asked = 3,    ///< client: are contents of this name known? The chunk, by which the answer is told, comes by itself
    known = 4,    ///< worker: they are; a chunk that was named is complete by that
    unknown = 5,  ///< worker: they are not
  };
  Kind kind;
  Chunk chunk;
  ContentName name{};       ///< of `named` and `asked`
  std::uint64_t bytes = 0;  ///< of `named` and `asked`
};

}  // namespace fargpu
