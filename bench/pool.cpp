// A pool of many hosts whose devices are numbers, on a real registry: the members, the placer and the records are those
// of fargpud. Told what to do as asked.h says; two of them make a pool, one that is all hosts, and one that places and
// asks.
//
//   pool ENDPOINTS

#include <asio.hpp>
#include <fmt/format.h>

#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "asked.h"
#include "server/pool/etcd_registry.h"
#include "tests/pool/simulated_host.h"

namespace bench {
namespace {

using namespace fargpu::server::pool;
using fargpu::test::SimulatedHost;
using namespace std::chrono_literals;

constexpr auto patience = 120s;

/// Everything of the registry is done on one thread, as in fargpud.
class Members {
 public:
  explicit Members(const std::string& endpoints) : work_(asio::make_work_guard(io_)), thread_([this] { io_.run(); }) {
    run([&]() -> asio::awaitable<void> {
      EtcdOptions options;
      options.endpoints = endpoints;
      options.plugin = FARGPU_ETCD_PLUGIN;
      registry_ = std::make_unique<EtcdRegistry>(io_, options);
      co_return;
    });
  }
  ~Members() {
    run([this]() -> asio::awaitable<void> {
      held_.clear();
      waiting_.clear();
      hosts_.clear();
      registry_.reset();
      co_return;
    });
    work_.reset();
    io_.stop();
    thread_.join();
  }

  void join(const Request& request, Answer& answer) {
    const std::uint64_t hosts = request.number("hosts"), devices = request.number("devices");
    const std::string prefix = request.text("prefix");
    const bool places = request.number("places", 0) != 0;
    run([&]() -> asio::awaitable<void> {
      for (std::uint64_t i = 0; i < hosts; ++i)
        hosts_.push_back(
            std::make_unique<SimulatedHost>(io_, *registry_,
                                            SimulatedHost::Options{.name = fmt::format("{}{:04}", prefix, i),
                                                                   .devices = static_cast<unsigned>(devices),
                                                                   .places = places}));
      co_await until([&] {
        return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->member().in_touch(); });
      });
    });
    answer.add("hosts", static_cast<double>(hosts));
  }

  /// Until it places, and knows of all hosts.
  void place(const Request& request, Answer& answer) {
    run([&]() -> asio::awaitable<void> {
      co_await until([&] {
        const PlacerCounts* const counts = front().counts();
        return counts && counts->hosts == request.number("hosts");
      });
    });
    answer.add("hosts", static_cast<double>(request.number("hosts")));
  }

  /// Leases that stay, and requests that find no room.
  void fill(const Request& request, Answer& answer) {
    run([&]() -> asio::awaitable<void> {
      const std::uint64_t count = request.number("count"), tenants = request.number("tenants");
      std::deque<std::shared_ptr<fargpu::server::pool::Request>> asked;
      for (std::uint64_t i = 0; i < count || !asked.empty(); ++i) {
        if (i < count) asked.push_back(front().request(wish(fmt::format("t{}", i % tenants), 1)));
        if (asked.size() < at_once && i + 1 < count) continue;
        co_await granted(*asked.front());
        held_.push_back(std::move(asked.front()));
        asked.pop_front();
      }
      for (std::uint64_t i = 0; i < request.number("queue"); ++i)
        waiting_.push_back(front().request(wish(fmt::format("t{}", i % tenants), 8)));
      co_await until([&] { return front().counts()->waiting == waiting_.size(); });
    });
    answer.add("leases", static_cast<double>(held_.size()));
    answer.add("waiting", static_cast<double>(waiting_.size()));
  }

  /// Plain transactions, one after the other: a key of a record's size comes, and goes.
  void raw(const Request& request, Answer& answer) {
    std::vector<double> samples;
    run([&]() -> asio::awaitable<void> {
      const std::string key = "fargpu/v1/bench/raw", value(400, 'x');
      for (std::uint64_t i = 0; i < request.number("count"); ++i) {
        const double begin = now();
        Transaction transaction;
        if (i % 2 == 0) transaction.require_absent(key);
        if (i % 2 == 0) transaction.put(key, value);
        else transaction.erase(key);
        if (!(co_await registry_->commit(std::move(transaction))).committed)
          throw std::runtime_error("a plain transaction did not take place");
        samples.push_back(now() - begin);
      }
    });
    answer.add_samples("seconds", std::move(samples));
  }

  /// From a request to its answer, one after the other; the lease ends then.
  void grants(const Request& request, Answer& answer) {
    std::vector<double> samples;
    run([&]() -> asio::awaitable<void> {
      for (std::uint64_t i = 0; i < request.number("count"); ++i) {
        const double begin = now();
        const auto asked = front().request(some_wish(request, i));
        co_await granted(*asked);
        samples.push_back(now() - begin);
        co_await end(*asked);
      }
    });
    answer.add_samples("seconds", std::move(samples));
  }

  /// Many at once: each lease ends when it was granted, and another one is asked for.
  void rate(const Request& request, Answer& answer) {
    std::uint64_t count = 0;
    double seconds = 0;
    run([&]() -> asio::awaitable<void> {
      const double begin = now(), over = begin + static_cast<double>(request.number("milliseconds")) / 1e3;
      std::uint64_t going = 0, asked = 0;
      std::exception_ptr failure;
      const auto client = [&]() -> asio::awaitable<void> {
        while (now() < over && !failure) {
          const auto one = front().request(some_wish(request, asked++));
          co_await granted(*one);
          ++count;
          co_await end(*one);
        }
      };
      for (std::uint64_t i = 0; i < request.number("at_once"); ++i) {
        ++going;
        asio::co_spawn(io_, client(), [&](std::exception_ptr error) {
          if (error && !failure) failure = error;
          --going;
        });
      }
      co_await until([&] { return going == 0; });
      seconds = now() - begin;
      if (failure) std::rethrow_exception(failure);
    });
    answer.add("grants", static_cast<double>(count));
    answer.add("seconds", seconds);
  }

  /// How often a host was promised away that had no room.
  void refused(const Request&, Answer& answer) {
    std::uint64_t sum = 0, leases = 0;
    run([&]() -> asio::awaitable<void> {
      for (const auto& host : hosts_) {
        sum += host->refusals();
        leases += host->leases().size();
      }
      co_return;
    });
    answer.add("refused", static_cast<double>(sum));
    answer.add("leases", static_cast<double>(leases));
  }

 private:
  static constexpr std::size_t at_once = 256;

  Member& front() { return hosts_.front()->member(); }

  template <class Work>
  void run(Work work) {
    asio::co_spawn(io_, std::move(work), asio::use_future).get();
  }

  template <class Condition>
  asio::awaitable<void> until(Condition condition) {
    asio::steady_timer timer(io_);
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("it takes longer than 120 s");
      timer.expires_after(5ms);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  asio::awaitable<void> granted(fargpu::server::pool::Request& request) {
    asio::steady_timer timer(io_, patience);
    if (!request.answer()) {
      request.answered = [&timer] { timer.cancel(); };
      asio::error_code ignored;
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      request.answered = nullptr;
    }
    if (!request.answer()) throw std::runtime_error("no answer within 120 s");
    if (const auto* const refusal = std::get_if<Refusal>(&*request.answer())) throw std::runtime_error(refusal->text);
  }

  // As if the client went: its hosts hear of it.
  asio::awaitable<void> end(const fargpu::server::pool::Request& request) {
    Transaction transaction;
    for (const Part& part : std::get<std::vector<Part>>(*request.answer()))
      transaction.erase(Keys("p").lease(part.host, request.id()));
    co_await registry_->commit(std::move(transaction));
  }

  static RequestRecord wish(const std::string& tenant, std::uint32_t gpus, std::uint32_t hosts = 1) {
    RequestRecord record;
    record.tenant = tenant;
    record.job = std::string(32, 'a');
    record.gpus = gpus;
    record.hosts = hosts;
    record.memory_bytes = std::uint64_t{40} << 30;
    record.compute_percent = 100;
    record.waits = true;
    record.program = "python3";
    record.client = "client.example.org:12345";
    return record;
  }
  // Every `gangs`th is for six devices of two hosts.
  static RequestRecord some_wish(const Request& request, std::uint64_t number) {
    const std::uint64_t gangs = request.number("gangs", 0);
    const bool gang = gangs != 0 && number % gangs == 0;
    return wish(fmt::format("t{}", number % request.number("tenants")), gang ? 6 : 1, gang ? 2 : 1);
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<EtcdRegistry> registry_;
  std::vector<std::unique_ptr<SimulatedHost>> hosts_;
  std::vector<std::shared_ptr<fargpu::server::pool::Request>> held_, waiting_;
  std::thread thread_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s ENDPOINTS\n", argv[0]);
    return 2;
  }
  try {
    bench::Members members(argv[1]);
    const auto by = [&](auto what) {
      return
          [&members, what](const bench::Request& request, bench::Answer& answer) { (members.*what)(request, answer); };
    };
    return bench::answer_requests({{"join", by(&bench::Members::join)},
                                   {"place", by(&bench::Members::place)},
                                   {"fill", by(&bench::Members::fill)},
                                   {"raw", by(&bench::Members::raw)},
                                   {"grants", by(&bench::Members::grants)},
                                   {"rate", by(&bench::Members::rate)},
                                   {"refused", by(&bench::Members::refused)}});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
