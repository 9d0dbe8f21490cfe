#pragma once
// A worker's process, as the broker that supervises it knows it.

#include <sys/types.h>

#include <asio.hpp>

#include <memory>
#include <string>

#include "worker_start.h"

namespace fargpu::server {

struct SupervisedProcess {
  enum class State {
    starting,  ///< its driver is being initialised
    ready,     ///< waiting for a session
    reserved,  ///< promised to the client that brings its ticket
    session,   ///< serving
    ending,    ///< done, or told to stop
  };
  pid_t process = -1;
  State state = State::starting;
  bool warm = false;  ///< started ahead, with the standard profile
  WorkerProfile profile;
  std::unique_ptr<asio::posix::stream_descriptor> link;
  std::string door;  ///< the path at which the next broker finds it; empty: it will not
  /// Its process, of a session that this broker has taken over: it is no child of this one.
  std::unique_ptr<asio::posix::stream_descriptor> exit;
  /// Runs until it is ready.
  std::unique_ptr<asio::steady_timer> start_deadline;

  void signal(int number) const;
  void hang_up();
};

}  // namespace fargpu::server
