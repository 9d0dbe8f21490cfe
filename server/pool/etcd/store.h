#pragma once
// etcd, as one member of a pool uses it: calls, lifetimes and watches by one of its members at a time, and by the next
// one when that fails.

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "interface.h"
#include "streams.h"
#include "words.h"

namespace fargpu::etcd {

/// All of it but its constructor, destructor and post() runs on its own thread, which waits for gRPC.
struct Store final : public StreamOwner {
 public:
  Store(std::vector<Address> addresses, const Settings& settings);
  /// Within a second.
  ~Store() override;
  /// From any thread.
  void post(std::function<void()> work);

  struct Call {
    Done done;
    Clock::time_point deadline;
    bool repeats = false;  ///< it may be done twice
    std::function<void(std::shared_ptr<Call>)> attempt;
    std::uint64_t epoch = 0;
    std::size_t asked = 0;  ///< the endpoint of the last attempt
    unsigned attempts = 0;
    // Of a read.
    std::vector<std::string> prefixes;
    std::vector<std::unique_ptr<pb::RangeResponse>> pages;
    std::size_t bytes = 0;  ///< of them
    std::int64_t page_keys = 0;
    std::size_t prefix = 0;
    std::string next_key;
    std::int64_t revision = 0;
  };
  using CallPointer = std::shared_ptr<Call>;

  void read(std::vector<std::string> prefixes, Done done);
  void commit(pb::TxnRequest request, Done done);
  void describe(Done done);
  void begin_lifetime(std::uint32_t seconds, Done done);
  void end_lifetime(std::int64_t id);

  void keep(Keeper* keeper);
  void stop_keeping(Keeper* keeper);
  void watch(Watch* watch);
  void stop_watching(Watch* watch);

 private:
  template <class Response>
  struct Unary;
  struct Wake;
  struct Tick;
  struct Endpoint {
    Address address;
    Trouble trouble;  ///< the last one
    Clock::time_point not_before{};
    std::chrono::milliseconds pause{0};
  };

  void run();
  void tick();
  void set_tick();
  void close();

  // --- the endpoint in use
  std::shared_ptr<grpc::Channel> new_channel(const Address& address, std::string& why) const;
  void connect();
  /// `cluster`: 0 where the endpoint does not tell it.
  void joined(std::uint64_t cluster);
  const Address& address() const override { return endpoints_[current_].address; }
  void leave(std::uint64_t joining, Trouble trouble) override;
  void mark(Trouble trouble);
  Trouble trouble() const;
  Endpoint& endpoint() { return endpoints_[current_]; }

  // --- calls
  /// `then` has the status and the response. Requests go to the endpoint in use.
  template <class Stub, class Request, class Response>
  void ask(std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*function)(grpc::ClientContext*,
                                                                                        const Request&,
                                                                                        grpc::CompletionQueue*),
           Stub& stub, const Request& request, std::function<void(const grpc::Status&, Response&)> then);
  CallPointer new_call(Done done, bool repeats);
  void submit(const CallPointer& call);
  void attempt(const CallPointer& call);
  /// After an attempt that failed: another one, or the end.
  void again(const CallPointer& call, std::uint64_t joining, const grpc::Status& status);
  void read_page(const CallPointer& call);
  void finish(const CallPointer& call, const Answer& answer);
  void fail(const CallPointer& call, Failure failure, const std::string& why);
  /// False, and the call has failed, if the answer shows that the store is not what it was.
  bool believe(const CallPointer& call, const pb::ResponseHeader& header, std::int64_t seen);
  bool is_same(const pb::ResponseHeader& header, std::int64_t seen) override;
  void changed(const std::string& why, std::uint64_t cluster, std::int64_t revision);
  void saw(std::int64_t revision) override { seen_ = std::max(seen_, revision); }

  // --- lifetimes and watches
  void open_streams();
  void end(Keeper* keeper);
  void check(Watch* watch);
  void fail(Watch* watch, Failure failure, const std::string& why) override;

  std::vector<Endpoint> endpoints_;
  const std::string ca_, certificate_, key_;
  const std::chrono::milliseconds timeout_, attempt_timeout_;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::thread thread_;

  bool shut_ = false;
  std::size_t endings_ = 0;  // of lifetimes, that are told to the store
  Clock::time_point close_at_{};
  Tick* tick_ = nullptr;

  std::size_t current_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::KV::Stub> kv_;
  std::unique_ptr<pb::Lease::Stub> lease_;
  std::unique_ptr<pb::Maintenance::Stub> maintenance_;
  std::unique_ptr<pb::Watch::Stub> watching_;
  bool connecting_ = false, joined_ = false;
  std::uint64_t joining_ = 0;  // counts them
  std::size_t failed_in_turn_ = 0;

  std::uint64_t cluster_ = 0;
  std::int64_t seen_ = 0;
  std::uint64_t epoch_ = 0;  // of what the store was

  std::deque<CallPointer> waiting_;
  std::set<Watch*> watches_;
  std::shared_ptr<KeepStream> keep_stream_;
  std::shared_ptr<WatchStream> watch_stream_;
};

}  // namespace fargpu::etcd
