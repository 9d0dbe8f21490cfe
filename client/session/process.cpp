#include "process.h"

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "client/base/config.h"
#include "client/base/environment.h"
#include "cuda_facts.h"
#include "dial.h"
#include "client/base/log.h"
#include "client/call/waiting_prints.h"
#include "client/memory/conflicts.h"
#include "client/memory/system_calls.h"
#include "client/call/remote_call.h"
#include "session.h"
#include "client/call/stats.h"
#include "client/call/trace.h"

namespace fargpu::client {

constinit ProcessRoot process_root;

namespace {

// `fargpu run` has warned the whole job already.
void warn_of_strange_variables() {
  if (environment_variable("FARGPU_JOB") || !log::enabled(log::Level::warn)) return;
  for (const StrangeVariable& variable : strange_variables()) log::warn("{}", variable.text());
}

// Gives back the default streams of a thread that ends.
void release_default_streams(Thread& thread) noexcept {
  if (life() != Life::ready) return;
  Session& session = session_of(thread);
  for (const auto& [context, handle] : thread.default_streams) {
    try {
      if (Stream* const stream = session.streams.find(handle)) session.streams.destroy(thread, *stream);
    } catch (const std::exception& error) {
      session.lose(error.what());
    }
  }
}

}  // namespace

// From here on calls find it.
void Process::take(Session* session) {
  session_.store(session, std::memory_order_release);
  session->at_loss([](Session& lost, const std::string& why) noexcept { process().lost(lost, why); });
  Calls::set_default(&session->calls);
  Thread::at_end(release_default_streams);
}

CUresult Process::initialise() {
  // In the child of a fork nobody may be left to release the lock.
  if (life() != Life::unborn) return unavailable();
  const std::lock_guard lock(mutex_);
  switch (life()) {
    case Life::ready: return CUDA_SUCCESS;
    case Life::unborn: break;
    default: return unavailable();
  }
  if (tried_) return outcome_;
  tried_ = true;
  try {
    began_ = stats::Clock::now();
    warn_of_strange_variables();
    expect_system_calls();
    Session* const session = dial(config()).release();
    take(session);
    if (session->terms.facts.devices.empty()) {
      const char* const chosen = environment_variable("CUDA_VISIBLE_DEVICES");
      const std::string wish = chosen ? chosen : "";
      // Hiding all devices is a habit of programs that want none.
      const auto level = wish.empty() || wish == "-1" ? log::Level::info : log::Level::warn;
      if (log::enabled(level)) {
        log::write(
            level,
            fmt::format(
                "no device of {} is visible: CUDA_VISIBLE_DEVICES is '{}'; unset it, or name devices as `fargpu ls` "
                "numbers them",
                session->terms.host, wish));
      }
      session->leave();
      session->lose("no device is visible");
      return outcome_ = CUDA_ERROR_NO_DEVICE;
    }
    // Only now is there something that a child must not touch and an exit must end.
    // The child's copy of pinned memory is to be whole: no thread is at it while the process forks.
    pthread_atfork([] { process().session()->host_memory.pages().lock_for_fork(); },
                   [] { process().session()->host_memory.pages().unlock_after_fork(); },
                   [] { process().in_forked_child(); });
    std::atexit([] { process().at_exit(); });
    if (trace::enabled) {
      trace::SessionFacts facts{
          session->terms.host, session->terms.session_id, {}, session->shares_memory(), [session](Handle handle) {
            const Function* const function = session->functions.find(reinterpret_cast<CUfunction>(handle.value()));
            return function ? function->name : std::string();
          }};
      for (const Device& device : session->terms.facts.devices) facts.devices.push_back(device.name);
      trace::begin_session(facts, began_);
    }
    current_life.store(Life::ready, std::memory_order_release);
    return outcome_ = CUDA_SUCCESS;
  } catch (const DialError& error) {
    log::error("{}", error.what());
    return outcome_ = error.result;
  } catch (const std::exception& error) {
    log::error("{}", error.what());
    return outcome_ = CUDA_ERROR_SYSTEM_NOT_READY;
  }
}

void Process::adopt(Session* session) {
  take(session);
  adopted_.push_back(session);
  current_life.store(Life::ready, std::memory_order_release);
}

void Process::give_up() {
  current_life.store(Life::ended);
  session()->leave();
  session()->lose("it is given up");
  current_life.store(Life::unborn);
}

// One line says why.
void Process::lost(Session& session, const std::string& cause) noexcept {
  if (&session != this->session()) return;  // given up before
  Life expected = Life::ready;
  if (!current_life.compare_exchange_strong(expected, Life::lost)) return;
  try {
    trace::note("the session is lost: " + cause);
    // A worker that ends in good order says why; of one that does not only its host knows.
    log::error(
        "the session is lost: {}. Every further CUDA call returns CUDA_ERROR_DEVICE_UNAVAILABLE; start the program "
        "again{}",
        cause,
        cause.ends_with("closed the connection") ? ", and look at the log of fargpud there for why the worker ended"
                                                 : "");
  } catch (...) {}
}

void Process::at_exit() noexcept {
  Life expected = Life::ready;
  const bool was_ready = current_life.compare_exchange_strong(expected, Life::ended);
  if (!was_ready && expected != Life::lost) return;
  if (was_ready) session()->leave();
  waiting_prints.write();
  tell_conflict_at_exit();
  current_life.store(Life::ended);
  if (stats::enabled) {
    stats::print({.host = session()->terms.host,
                  .shares_memory = session()->shares_memory(),
                  .ran = stats::Clock::now() - began_,
                  .bytes_sent = session()->calls.commands.bytes_sent() + session()->lanes.bytes_sent(),
                  .bytes_received = session()->calls.receiver.bytes_received() + session()->lanes.bytes_received(),
                  .lanes = session()->lanes.open_lanes(),
                  .lanes_in_use = session()->lanes.lanes_in_use()});
  }
  trace::finish();
}

// The child has neither our threads nor a right to the connection. The parent's descriptors are left alone: closing is
// up to exec (they are all close-on-exec) or exit.
void Process::in_forked_child() noexcept {
  current_life.store(Life::forked);
  HostPages& pages = session()->host_memory.pages();
  pages.become_private();
  pages.unlock_after_fork();
}

CUresult result_of_exception(Symbol symbol) noexcept {
  const auto lose = [&](const std::string& why) {
    if (Session* const session = process().session()) session->lose(std::string(facts_of(symbol).name) + ": " + why);
  };
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const kj::Exception& error) {
    lose(std::string("malformed message: ") + error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose(error.what());
  } catch (...) {
    lose("failed for an unknown reason");
  }
  const CUresult result = unavailable();
  return result == CUDA_SUCCESS ? CUDA_ERROR_UNKNOWN : result;
}

}  // namespace fargpu::client
