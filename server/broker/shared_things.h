#pragma once
// What sessions of this host share with each other, by the keys that their programs know.

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fair_limit.h"
#include "server/exchange.h"
#include "worker_link.capnp.h"

namespace fargpu::server {

/// Memory is paid for by the session that made it, and by one of those that still have it when that has given it up:
/// always by one of them. Used by the broker's one thread.
class SharedThings {
 public:
  /// Has the session of a worker pay for so much of a device, or, with false, no more.
  using Charge = std::function<void(pid_t worker, int device, std::uint64_t bytes, bool pays)>;
  /// `most`: pieces of memory of all workers together, because each holds a descriptor of this process.
  SharedThings(std::size_t most, Charge charge) : room_(most), charge_(std::move(charge)) {}

  /// From a worker, with its descriptor, which this takes. Throws ProtocolError if it makes no sense. False if it is
  /// too much: then nothing is shared by the key, and a session that asks for it is told so.
  bool add(pid_t worker, const std::string& tenant, wire::Share::Reader share, Descriptor descriptor);
  void remove(pid_t worker, capnp::Data::Reader key);
  /// Everything of a worker, and what it had of others. What it paid for it pays for until its account ends, and its
  /// heirs from now on.
  void remove_all(pid_t worker);
  /// For a worker. Null if nothing is shared by this key, or not by a worker that `may` share with it.
  const SharedThing* lend(capnp::Data::Reader key, pid_t to, const std::function<bool(pid_t worker)>& may);
  /// A worker of an earlier broker's session holds memory that was lent to it. Throws ProtocolError if it makes no
  /// sense.
  void take_over(pid_t worker, wire::Holds::Reader holds);
  /// Whether something is shared by this key, and whether a worker holds memory by one.
  bool shared(const ShareKey& key) const { return shares_.contains(key); }
  bool lent(pid_t worker, const ShareKey& key) const { return loans_.contains({worker, key}); }
  /// All that such workers share and hold is known: memory whose maker has given it up has payers among those that hold
  /// it.
  void all_taken_over();
  /// A worker has no longer what was lent to it, once, by this key.
  void let_go(pid_t worker, capnp::Data::Reader key);

 private:
  static constexpr std::size_t loans_max = 65'536;  // of one worker; no device has so many pieces of memory

  /// Of memory of a device.
  struct Piece {
    int device;
    std::uint64_t bytes;
    pid_t payer;                                // -1: nobody has it
    bool inherited = false;                     // the payer has not made it
    std::map<pid_t, std::size_t> holders = {};  // to whom it was lent, how often
  };
  struct Share {
    pid_t worker = -1;
    FairLimit::Place room;
    SharedThing thing;
    std::shared_ptr<Piece> piece;  // null for an event
  };
  struct Loan {
    std::shared_ptr<Piece> piece;
    std::size_t times = 0;
  };
  using LoanName = std::pair<pid_t, ShareKey>;
  void pass_on(Piece& piece);

  FairLimit room_;
  const Charge charge_;
  std::map<ShareKey, Share> shares_;
  std::map<pid_t, std::set<ShareKey>> of_workers_;
  std::map<LoanName, Loan> loans_;
  std::map<pid_t, std::size_t> loan_counts_;
  std::map<ShareKey, std::shared_ptr<Piece>> unclaimed_;  // taken over from those that hold them, and shared by nobody
};

}  // namespace fargpu::server
