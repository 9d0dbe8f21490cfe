#pragma once
// The two streams of an endpoint in use: by one all lifetimes are kept alive, by the other all watches hear.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "etcd.grpc.pb.h"
#include "interface.h"
#include "words.h"

namespace fargpu::etcd {

namespace pb = ::etcdserverpb;
using Clock = std::chrono::steady_clock;

// What gRPC gives back when something is done.
class Tag {
 public:
  virtual ~Tag() = default;
  virtual void done(bool ok) = 0;
};

struct Keeper {
  std::int64_t id = 0;
  std::chrono::seconds seconds{0};
  Clock::time_point until, asked, next;
  bool asks = false, over = false;
  KeeperEvents events{};
};

struct Watch {
  std::string prefix;
  std::int64_t next = 0;  ///< revision
  WatchEvents events{};
  bool over = false, stopped = false;
  std::int64_t id = -1;  ///< in the present stream
  pb::WatchResponse parts;
  std::size_t part_bytes = 0;
};

/// What the streams are a part of.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;

 protected:
  template <class Stub, class Request, class Response>
  friend class Stream;
  friend class KeepStream;
  friend class WatchStream;

  /// Of the endpoint in use.
  virtual const Address& address() const = 0;
  /// The endpoint that was joined so is of no use; nothing if another one is in use by now.
  virtual void leave(std::uint64_t joining, Trouble trouble) = 0;
  virtual void fail(Watch* watch, Failure failure, const std::string& why) = 0;
  /// Whether an answer is of the store that the earlier ones were of, and not older than `seen`.
  virtual bool is_same(const pb::ResponseHeader& header, std::int64_t seen) = 0;
  virtual void saw(std::int64_t revision) = 0;

  std::unique_ptr<grpc::CompletionQueue> queue_;
  std::size_t outstanding_ = 0;  // tags that gRPC has
  bool closing_ = false;
  std::set<grpc::ClientContext*> contexts_;
  std::set<Keeper*> keepers_;
};

template <class Stub, class Request, class Response>
class Stream : public std::enable_shared_from_this<Stream<Stub, Request, Response>> {
 public:
  Stream(StreamOwner& store, std::shared_ptr<grpc::Channel> channel, std::uint64_t joining)
      : store_(store), joining_(joining), channel_(std::move(channel)) {
    context_.AddMetadata("hasleader", "true");
    store_.contexts_.insert(&context_);
  }
  virtual ~Stream() { store_.contexts_.erase(&context_); }

  void start() { rw_->StartCall(tag(&Stream::on_start)); }
  /// The store hears nothing more of it.
  void cancel() {
    cancelled_ = true;
    context_.TryCancel();
  }

 protected:
  using Pointer = std::unique_ptr<grpc::ClientAsyncReaderWriter<Request, Response>>;
  virtual void on_response() = 0;
  void write(Request request) {
    requests_.push_back(std::move(request));
    write_next();
  }

  StreamOwner& store_;
  const std::uint64_t joining_;
  grpc::ClientContext context_;
  Pointer rw_;
  Response response_;
  bool cancelled_ = false;

 private:
  struct Event final : Tag {
    void done(bool ok) override {
      const std::unique_ptr<Event> self(this);
      --stream->store_.outstanding_;
      (stream.get()->*what)(ok);
    }
    std::shared_ptr<Stream> stream;
    void (Stream::*what)(bool) = nullptr;
  };
  void* tag(void (Stream::*what)(bool)) {
    Event* const event = new Event;
    event->stream = this->shared_from_this();
    event->what = what;
    ++store_.outstanding_;
    return static_cast<Tag*>(event);
  }

  void on_start(bool ok) {
    started_ = ok;
    if (!ok) return finish();
    rw_->Read(&response_, tag(&Stream::on_read));
    write_next();
  }
  void on_read(bool ok) {
    if (!ok) return finish();
    if (!cancelled_) on_response();
    response_.Clear();
    rw_->Read(&response_, tag(&Stream::on_read));
  }
  void write_next() {
    if (!started_ || writing_ || ended_ || requests_.empty()) return;
    writing_ = true;
    rw_->Write(requests_.front(), tag(&Stream::on_written));
  }
  void on_written(bool ok) {
    writing_ = false;
    requests_.pop_front();
    if (ended_) return finish();
    if (ok) write_next();
  }
  void finish() {
    ended_ = true;
    if (!writing_) rw_->Finish(&status_, tag(&Stream::on_finish));
  }
  void on_finish(bool) {
    if (cancelled_ || store_.closing_) return;
    Trouble trouble = trouble_of(status_, store_.address());
    if (status_.ok()) trouble.why = "etcd at " + store_.address().written + ": it ended a stream";
    store_.leave(joining_, std::move(trouble));
  }

  const std::shared_ptr<grpc::Channel> channel_;
  std::deque<Request> requests_;
  bool started_ = false, writing_ = false, ended_ = false;
  grpc::Status status_;
};

class KeepStream final : public Stream<pb::Lease::Stub, pb::LeaseKeepAliveRequest, pb::LeaseKeepAliveResponse> {
 public:
  KeepStream(StreamOwner& store, pb::Lease::Stub& stub, std::shared_ptr<grpc::Channel> channel, std::uint64_t joining);
  void ask(Keeper* keeper);

 private:
  void on_response() override;
};

class WatchStream final : public Stream<pb::Watch::Stub, pb::WatchRequest, pb::WatchResponse> {
 public:
  WatchStream(StreamOwner& store, pb::Watch::Stub& stub, std::shared_ptr<grpc::Channel> channel, std::uint64_t joining);
  /// Begins at its next revision.
  void add(Watch* watch);
  void remove(Watch* watch);

 private:
  void on_response() override;
  void create_next();
  void on_created();
  void on_changes(Watch* watch);
  void cancel_watch(std::int64_t id);

  std::deque<Watch*> to_create_;
  bool creating_ = false;
  Watch* created_ = nullptr;  // that etcd was asked to create; null: not wanted any more
  std::map<std::int64_t, Watch*> by_id_;
};

}  // namespace fargpu::etcd
