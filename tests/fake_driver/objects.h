#pragma once
// What the parts of the fake driver share: objects by address, memory that is counted, and what lies at an address.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <typeinfo>

namespace fargpu::fake {

std::recursive_mutex& mutex();
using Lock = std::lock_guard<std::recursive_mutex>;

/// All objects that exist, and of which type. The functions below want mutex() held.
using Objects = std::map<const void*, const std::type_info*>;
Objects& objects();

template <class T>
void enlist(T* object) {
  objects()[object] = &typeid(T);
}
template <class T>
T* live(const void* handle) {
  const auto found = objects().find(handle);
  const bool is = found != objects().end() && *found->second == typeid(T);
  return is ? static_cast<T*>(const_cast<void*>(handle)) : nullptr;
}
template <class T>
T* make() {
  T* const made = new T;
  enlist(made);
  return made;
}
template <class T>
CUresult destroy(const void* handle) {
  T* const object = live<T>(handle);
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  objects().erase(object);
  delete object;
  return CUDA_SUCCESS;
}

/// The calling thread's context, and whether calls may be made in it.
CUcontext current_context();
CUresult usable();

/// Takes device memory; false if there is not so much left.
bool take_memory(std::uint64_t bytes);
void give_memory(std::uint64_t bytes);
/// What every byte of new memory is.
std::byte what_was_left();

/// Storage behind a device or pinned address, if all of it is there.
std::byte* translate(std::uint64_t address, std::uint64_t bytes);

/// Copies as a GPU does, whose accesses no sanitizer of the process sees: client and worker, one process in the tests,
/// order them by a ring that each has mapped at its own address, which ThreadSanitizer would not know for one.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

/// Keeps memory that cuMemCreate made; null if there is none of this handle.
std::shared_ptr<void> keep_memory(CUmemGenericAllocationHandle handle);

bool stream_lives(CUstream stream);

/// The context is gone, and these of its objects with it.
void drop_arrays(CUcontext context);
void drop_textures(CUcontext context);

}  // namespace fargpu::fake
