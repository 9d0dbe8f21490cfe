#pragma once
// Connections whose clients have asked for no session yet. Nobody is known by then, so that what they can cost is bounded.

#include <cstddef>
#include <list>
#include <string>

#include "offences.h"
#include "settings.h"

namespace fargpu::server {

/// One of them.
class Caller {
 public:
  /// Where it is from, by which callers are counted: an address, or a user of this machine.
  virtual const std::string& source() const = 0;
  /// Closes it.
  virtual void cut(const std::string& why) = 0;

 protected:
  ~Caller() = default;
};

/// Who has said nothing for the longest makes room where there are too many, in all or of one source. Used by the broker's one thread.
class Callers {
 public:
  using Place = std::list<Caller*>::iterator;
  explicit Callers(const Settings& settings);

  /// How many there may be at once.
  std::size_t most() const { return most_; }
  /// Whether connections from there are not heard at present, because too many came to nothing.
  bool shut_out(const std::string& source) const;
  void make_room();
  /// The same for one more from there.
  void make_room_for(const std::string& source);

  Place add(Caller& caller) { return callers_.insert(callers_.end(), &caller); }
  void spoke(Place place) { callers_.splice(callers_.end(), callers_, place); }
  void remove(Place place) { callers_.erase(place); }

  /// Somebody came to nothing: says so in the log, if that is not full of him already.
  void offended(const char* event, const std::string& peer, const std::string& source, const std::string& reason);

 private:
  const Settings& settings_;
  const std::size_t most_;
  Offences offences_;
  std::list<Caller*> callers_;  // who spoke last is last
};

}  // namespace fargpu::server
