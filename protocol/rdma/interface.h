#pragma once
// What the plugin libfargpu-ucx.so offers to the libraries and programs that load it: connections by UCX. The plugin
// and its user may be of different builds, so only plain data and functions without exceptions cross here.
//
// Threads: a context may be used by any, a line by one at a time. Events are called within the functions of their line.

#include <cstddef>
#include <cstdint>

namespace fargpu::rdma {

inline constexpr std::uint32_t interface_version = 3;
inline constexpr std::size_t head_bytes_max = 64;       ///< of a message's head
inline constexpr std::size_t message_bytes_max = 4096;  ///< of its body
inline constexpr const char* gpu_transport = "cuda_copy";
inline constexpr std::size_t why_bytes = 512;  ///< of a text that says why something failed

struct Context;  ///< UCX on some devices of this machine
struct Line;     ///< one end of a connection, with a ring that the other end writes
struct Memory;   ///< memory that the devices know, from which a line can put without a copy

enum class MemoryKind : std::uint8_t {
  host,
  device,  ///< of a GPU, of which neither UCX's processor nor ours may touch a byte
};

struct Events {
  void* owner;
  /// A message has come, from any peer that knows the line's address. Head and body are valid during the call.
  void (*message)(void* owner, const void* head, std::size_t head_bytes, const void* body, std::size_t body_bytes);
  /// What was put before the oldest flush() that has not been told of lies in the other end's ring.
  void (*flushed)(void* owner);
  /// The line is of no use any more.
  void (*failed)(void* owner, const char* why);
};

/// What the other end needs to know of a line. Valid as long as the line.
struct End {
  const void* address;
  std::size_t address_bytes;
  const void* key;  ///< to the ring, and to nothing else
  std::size_t key_bytes;
  std::uint64_t ring;  ///< its address
};

/// Functions with `why` return null, or false, and write there what was wrong, in why_bytes at most.
struct Interface {
  std::uint32_t version;     ///< interface_version of the plugin; the rest of this is that version's
  const char* release;       ///< of fargpu, that the plugin was built with
  const char* (*library)();  ///< UCX and its version

  /// `devices`: network devices as UCX names them, separated by commas. `transports`: UCX's own, the same way; with
  /// gpu_transport among them the context can know memory of a GPU.
  Context* (*open)(const char* devices, const char* transports, char* why);
  void (*close)(Context* context);

  /// `ring`: memory of a GPU of so many bytes, which outlives the line; null: memory that the line makes for itself.
  Line* (*open_line)(Context* context, std::size_t ring_bytes, void* ring, const Events* events, char* why);
  /// Withdraws the key to the ring. No event comes any more.
  void (*close_line)(Line* line);
  void (*end)(Line* line, End* end);
  void* (*ring)(Line* line);
  /// Copies from the ring, at this offset, to memory that is surely there. False: the process ends, and the ring with
  /// it.
  bool (*read)(Line* line, std::uint64_t offset, void* to, std::size_t bytes);
  bool (*connect)(Line* line, const End* other, char* why);

  /// Sends a message, in order with others. The body stays as it is until the other end has had it. False: the line is
  /// of no use any more.
  bool (*send)(Line* line, const void* head, std::size_t head_bytes, const void* body, std::size_t body_bytes);
  /// Writes to the other end's ring at this offset. The bytes stay as they are until that is flushed. `memory`: what
  /// they lie in, or null.
  bool (*put)(Line* line, std::uint64_t offset, const void* bytes, std::size_t size, Memory* memory);
  bool (*flush)(Line* line);

  /// Lets UCX work: what has come is told of. False if nothing happened.
  bool (*progress)(Line* line);
  /// Becomes readable when there is something to do, if arm() said so after the last progress().
  int (*descriptor)(Line* line);
  bool (*arm)(Line* line);

  /// Whether puts from known memory need no copy here. Memory of a GPU has to be known in any case.
  bool (*knows_memory)();
  Memory* (*know)(Context* context, void* address, std::size_t bytes, MemoryKind kind, char* why);
  void (*forget)(Context* context, Memory* memory);

  /// The transports and devices that a connected line goes by, as a text of at most so many bytes.
  void (*describe)(Line* line, char* text, std::size_t bytes);
};

/// The one function of the plugin, by this name.
inline constexpr const char* entry_name = "fargpu_rdma_interface";
using Entry = const Interface* (*)();

}  // namespace fargpu::rdma
