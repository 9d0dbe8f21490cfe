#include "process.h"

#include <pthread.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "client/base/config.h"
#include "client/base/environment.h"
#include "cuda_facts.h"
#include "dial.h"
#include "client/base/log.h"
#include "client/call/waiting_prints.h"
#include "client/memory/conflicts.h"
#include "client/memory/system_calls.h"
#include "client/call/remote_call.h"
#include "link_news.h"
#include "protocol/words.h"
#include "pool.h"
#include "pool_dial.h"
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
  if (!serving()) return;
  for (const auto& [context, handle] : thread.default_streams) {
    Session& session = *context->session;
    try {
      if (Stream* const stream = session.streams.find(handle)) session.streams.destroy(thread, *stream);
    } catch (const std::exception& error) {
      session.lose(words(error.what()));
    }
  }
}

void warn_of_hidden_devices(const std::string& hosts) {
  const char* const chosen = environment_variable("CUDA_VISIBLE_DEVICES");
  const std::string wish = chosen ? chosen : "";
  // Hiding all devices is a habit of programs that want none.
  const auto level = wish.empty() || wish == "-1" ? log::Level::info : log::Level::warn;
  if (!log::enabled(level)) return;
  log::write(level,
             fmt::format("no device of {} is visible: CUDA_VISIBLE_DEVICES is '{}'; unset it, or name devices as "
                         "`fargpu ls` numbers them",
                         hosts, wish));
}

}  // namespace

const Facts& Process::facts() const {
  const Pool* const pool = this->pool();
  return pool ? pool->facts() : session()->terms.facts;
}

Session& Process::session_without_context(const Thread& thread) {
  if (thread.session) return *thread.session;
  if (Session* const session = this->session()) return *session;
  return pool()->first();
}

Session& Process::session_of_device(CUdevice device) {
  Pool* const pool = this->pool();
  return pool ? pool->session_of(device) : *session();
}

Context* Process::find_context(CUcontext context) const {
  const Pool* const pool = this->pool();
  Session* const session = pool ? pool->begun(handle_of(context).origin()) : this->session();
  return session ? session->contexts.find(context) : nullptr;
}

// The runtime has the handles of primary contexts before their sessions begin (Pool::primary_context), and makes such a
// context current ahead of retaining it.
Context* Process::find_context_to_use(CUcontext context) {
  Pool* const pool = this->pool();
  if (pool && !pool->begun(handle_of(context).origin()))
    if (const auto device = pool->device_of_primary(context)) pool->session_of(*device);
  return find_context(context);
}

template <class Action>
void Process::for_each_session(Action&& action) const {
  if (const Pool* const pool = this->pool()) pool->for_each(action);
  else if (Session* const session = this->session()) action(*session);
}

void Process::take(Session* session) {
  session->at_loss([](Session& lost, const std::string& why) noexcept { process().lost(lost, why); });
  Thread::at_end(release_default_streams);
  set_usual(pool() ? pool()->usual() : session);
}

void Process::set_usual(Session* session) {
  session_.store(session, std::memory_order_release);
  Calls::set_default(session ? &session->calls : nullptr);
}

void Process::take(std::unique_ptr<Pool> pool) {
  set_usual(nullptr);
  Calls::set_first([]() -> Calls& { return process().pool()->first().calls; });
  pool->at_begin([](Session& session) { process().take(&session); });
  at_link_loss([](const Calls& by, std::uint32_t number, const std::string& why) {
    if (Pool* const several = process().pool()) several->between.link_lost(by, number, why);
  });
  Pool::set_of_process(pool.get());
  pool_.store(pool.release(), std::memory_order_release);
}

CUresult Process::initialise() {
  // In the child of a fork nobody may be left to release the lock.
  if (life() != Life::unborn) return unavailable();
  const std::lock_guard lock(mutex_);
  switch (life()) {
    case Life::ready:
    case Life::several: return CUDA_SUCCESS;
    case Life::unborn: break;
    default: return unavailable();
  }
  if (tried_) return outcome_;
  tried_ = true;
  watch_forks();
  try {
    began_ = stats::Clock::now();
    warn_of_strange_variables();
    expect_system_calls();
    read_config_again();
    auto pool = find_pool(config());
    return outcome_ = pool ? begin_pool(std::move(pool)) : begin_alone();
  } catch (const DialError& error) {
    log::error("{}", error.what());
    return outcome_ = error.result;
  } catch (const std::exception& error) {
    log::error("{}", error.what());
    return outcome_ = CUDA_ERROR_SYSTEM_NOT_READY;
  }
}

CUresult Process::begin_alone() {
  Session* const session = dial(config()).release();
  take(session);
  if (session->terms.facts.devices.empty()) {
    warn_of_hidden_devices(session->terms.host);
    session->leave();
    session->lose("no device is visible");
    return CUDA_ERROR_NO_DEVICE;
  }
  std::atexit([] { process().at_exit(); });
  trace_sessions(session);
  current_life.store(Life::ready, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult Process::begin_pool(std::unique_ptr<Pool> pool) {
  if (pool->facts().devices.empty()) {
    warn_of_hidden_devices(pool->names());
    return CUDA_ERROR_NO_DEVICE;
  }
  take(std::move(pool));
  std::atexit([] { process().at_exit(); });
  trace_sessions(nullptr);
  current_life.store(Life::several, std::memory_order_release);
  return CUDA_SUCCESS;
}

// From now on there may be something that a child must not touch. The child's copy of pinned and managed memory is to
// be whole: no thread is at it while the process forks.
void Process::watch_forks() {
  pthread_atfork([] { process().before_fork(); },
                 [] {
                   for (PagedMemory* const pages : std::exchange(process().locked_for_fork_, {}))
                     if (pages) pages->unlock_after_fork();
                   process().fork_.unlock();
                 },
                 [] { process().in_forked_child(); });
}

void Process::trace_sessions(Session* session) {
  if (!trace::detailed) return;
  trace::SessionFacts facts{
      session ? session->terms.host : pool()->names(),
      session ? session->terms.session_id : 0,
      {},
      session && session->shares_memory(),
      [](Handle handle) {
        std::string name;
        process().for_each_session([&](Session& one) {
          if (const Function* const function = one.functions.find(reinterpret_cast<CUfunction>(handle.value())))
            name = function->name;
        });
        return name;
      }};
  for (const Device& device : this->facts().devices) facts.devices.push_back(device.name);
  trace::begin_session(facts, began_);
}

void Process::adopt(Session* session) {
  take(session);
  adopted_.push_back(session);
  current_life.store(Life::ready, std::memory_order_release);
}

void Process::adopt(std::unique_ptr<Pool> pool) {
  take(std::move(pool));
  current_life.store(Life::several, std::memory_order_release);
}

void Process::give_up() {
  current_life.store(Life::ended);
  for_each_session([](Session& session) {
    session.leave();
    session.lose("it is given up");
  });
  pool_.store(nullptr);
  Pool::set_of_process(nullptr);
  current_life.store(Life::unborn);
}

// One line says why.
void Process::lost(Session& session, const std::string& cause) noexcept {
  Pool* const pool = this->pool();
  const bool own = pool ? pool->begun(session.terms.origin) == &session : &session == this->session();
  if (!own) return;  // given up before
  const char* consequence = "Every further CUDA call returns CUDA_ERROR_DEVICE_UNAVAILABLE; start the program again";
  if (pool) {
    if (life() != Life::several || !pool->lose(session)) return;
    consequence = "Every further call to its devices returns CUDA_ERROR_DEVICE_UNAVAILABLE; those of other hosts go on";
    pool->between.lost(session);
    set_usual(pool->usual());
  } else {
    Life expected = Life::ready;
    if (!current_life.compare_exchange_strong(expected, Life::lost)) return;
  }
  try {
    const std::string which = pool ? "the session at " + session.terms.host : "the session";
    trace::note(which + " is lost: " + cause);
    // A worker that ends in good order says why; of one that does not only its host knows.
    log::error("{} is lost: {}. {}{}", which, cause, consequence,
               cause.ends_with("closed the connection")
                   ? ", and look at the log of fargpud there for why the worker ended"
                   : "");
  } catch (...) {}
}

void Process::at_exit() noexcept {
  const Life before = current_life.exchange(Life::ended);
  const bool serving = before == Life::ready || before == Life::several;
  if (!serving && before != Life::lost) {
    current_life.store(before);
    return;
  }
  if (serving) for_each_session([](Session& session) { session.leave(); });
  waiting_prints.write();
  tell_conflict_at_exit();
  if (stats::enabled) print_stats();
  trace::finish();
}

void Process::print_stats() noexcept {
  try {
    stats::SessionTotals totals{.ran = stats::Clock::now() - began_};
    for_each_session([&](Session& session) {
      totals.host += (totals.host.empty() ? "" : ", ") + session.terms.host;
      if (totals.medium.empty()) totals.medium = session.medium();
      totals.bytes_sent += session.calls.commands.bytes_sent() + session.lanes.bytes_sent();
      totals.bytes_received += session.calls.receiver.bytes_received() + session.lanes.bytes_received();
      totals.lanes += session.lanes.open_lanes();
      totals.lanes_in_use += session.lanes.lanes_in_use();
      const stats::ContentCounts contents = session.lanes.content_counts();
      totals.contents.named += contents.named;
      totals.contents.known += contents.known;
      totals.contents.known_bytes += contents.known_bytes;
      totals.contents.hashing += contents.hashing;
      totals.contents.remembered += contents.remembered;
    });
    if (const Pool* const several = pool()) {
      totals.bytes_direct = several->between.bytes_direct();
      totals.bytes_relayed = several->between.bytes_relayed();
    }
    stats::print(totals);
  } catch (const std::exception& error) {
    log::error("the table of calls cannot be written: {}", error.what());
  }
}

// The child has neither our threads nor a right to the connection. The parent's descriptors are left alone: closing is
// up to exec (they are all close-on-exec) or exit. A cuInit that is under way in another thread, and holds the lock,
// does not end here.
void Process::in_forked_child() noexcept {
  if (life() == Life::unborn && mutex_.try_lock()) mutex_.unlock();
  else current_life.store(Life::forked);
  for (PagedMemory* const pages : locked_for_fork_) {
    if (!pages) continue;
    pages->become_private();
    pages->unlock_after_fork();
  }
  fork_.unlock();
}

// A session may begin meanwhile, of which the child has nothing.
void Process::before_fork() {
  fork_.lock();
  locked_for_fork_ = {};
  std::size_t count = 0;
  for_each_session([&](Session& session) {
    locked_for_fork_[count++] = &session.host_memory.pages();
    locked_for_fork_[count++] = &session.managed;
  });
  for (PagedMemory* const pages : locked_for_fork_)
    if (pages) pages->lock_for_fork();
}

CUresult result_of_exception(Symbol symbol) noexcept {
  const auto lose = [&](const char* why, const char* detail = "") {
    Session* session = process().session();
    if (process().pool()) {
      const Thread& thread = Thread::current();
      session = thread.context() ? thread.context()->session : thread.session;
    }
    if (session) session->lose(words(facts_of(symbol).name, ": ", why, detail));
  };
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const DialError&) {  // of a pool's session, which now was to begin; the line about it has been written
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  } catch (const ChannelClosed& error) {
    // Any of several sessions may be meant. Its own threads tell of it.
    if (!process().pool()) lose(error.what());
    else log::debug("{}: {}", facts_of(symbol).name, error.what());
  } catch (const kj::Exception& error) {
    lose("malformed message: ", error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose(error.what());
  } catch (...) {
    lose("failed for an unknown reason");
  }
  if (life() == Life::several) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  const CUresult result = unavailable();
  return result == CUDA_SUCCESS ? CUDA_ERROR_UNKNOWN : result;
}

}  // namespace fargpu::client
