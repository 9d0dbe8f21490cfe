#pragma once
// Libraries and their kernels belong to no context: a program loads a library once and launches its kernels on whatever
// device is current. Where that is another host's, the library is loaded there too.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::client {

class Session;
class Thread;

/// Threads: any.
class Twins {
 public:
  /// How a library comes to be in the session that the thread's calls go to, and how a kernel is found in it there.
  struct Source {
    std::function<CUresult(Thread& thread, Handle& library)> load;
    std::function<CUresult(Thread& thread, Handle library, const std::string& name, Handle& kernel)> find;
  };
  /// The program has loaded it.
  void loaded(Handle library, Source source);
  /// The one of `session`, to which the calls of the thread go, that is what `library`, or `kernel` of the session
  /// `of`, is in another one.
  CUresult twin_library(Thread& thread, const Session& session, Handle& library);
  CUresult twin_kernel(Thread& thread, const Session& session, const Session& of, Handle& kernel);
  /// The program unloads it: it is forgotten. Returns it and what it is in other sessions.
  std::vector<Handle> take(Handle library);

 private:
  struct Group {
    std::mutex loading;
    Source source;
    std::map<unsigned, Handle> libraries;  // by the sessions' numbers
  };
  std::shared_ptr<Group> group_of(Handle library);

  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Group>> groups_;  // by each of its libraries
};

}  // namespace fargpu::client
