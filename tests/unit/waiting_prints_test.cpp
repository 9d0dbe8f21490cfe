// What kernels print, on its way into the program's own streams.

#include "client/call/waiting_prints.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>

#include "client/objects/thread.h"
#include "lone_session.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

// Standard output goes to a file meanwhile.
class Captured {
 public:
  Captured() : file_(std::tmpfile()), before_(::dup(1)) {
    std::fflush(stdout);
    REQUIRE(::dup2(::fileno(file_), 1) == 1);
  }
  ~Captured() {
    std::fflush(stdout);
    ::dup2(before_, 1);
    ::close(before_);
    std::fclose(file_);
  }
  std::string text() {
    std::fflush(stdout);
    std::string text(static_cast<std::size_t>(::lseek(::fileno(file_), 0, SEEK_END)), ' ');
    CHECK(::pread(::fileno(file_), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  std::FILE* const file_;
  const int before_;
};

// A thread has locked standard output until this goes.
class Locked {
 public:
  Locked()
      : holder_([this] {
          ::flockfile(stdout);
          locked_.set_value();
          done_.get_future().wait();
          ::funlockfile(stdout);
        }) {
    locked_.get_future().wait();
  }
  ~Locked() {
    done_.set_value();
    holder_.join();
  }

 private:
  std::promise<void> locked_, done_;
  std::thread holder_;
};

}  // namespace

TEST_CASE("the thread that receives does not wait for standard output") {
  LoneSession lone;
  std::promise<void> passed;
  auto received = passed.get_future();
  lone.session().fences.after_all(Thread::current(), [&] { passed.set_value(); });
  {
    const Captured captured;
    const Locked locked;
    lone.push([](wire::Control::Builder control) {
      auto text = control.initPrinted();
      text.setDescriptor(1);
      text.setText(capnp::Data::Reader(reinterpret_cast<const kj::byte*>("here\n"), 5));
    });
    lone.push([](wire::Control::Builder control) { control.initPassed().setFence(1); });
    CHECK(received.wait_for(10s) == std::future_status::ready);
  }
  Captured captured;
  std::fputs("before ", stdout);
  waiting_prints.write();
  std::fputs("behind\n", stdout);
  CHECK(captured.text() == "before here\nbehind\n");
}

TEST_CASE("what a kernel printed comes before what a thread prints that returns later") {
  Captured captured;
  for (int round = 0; round < 200; ++round) {
    waiting_prints.add(WaitingPrints::output, "kernel\n");
    std::thread other([] { waiting_prints.write(); });
    waiting_prints.write();
    std::fputs("program\n", stdout);
    other.join();
  }
  std::string wanted;
  for (int round = 0; round < 200; ++round) wanted += "kernel\nprogram\n";
  CHECK(captured.text() == wanted);
}

TEST_CASE("of too much text the oldest is lost") {
  Captured captured;
  const std::string piece(WaitingPrints::bytes_max / 2, 'x');
  for (int i = 0; i < 3; ++i) waiting_prints.add(WaitingPrints::output, piece);
  waiting_prints.add(WaitingPrints::output, "end");
  waiting_prints.write();
  const std::string text = captured.text();
  CHECK(text.size() == WaitingPrints::bytes_max);
  CHECK(text.ends_with("xend"));
}
