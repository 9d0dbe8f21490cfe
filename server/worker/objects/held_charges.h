#pragma once
// What an object has of the device's memory, as long as it has it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "server/quota/ledger.h"

namespace fargpu::server {

/// Used by the executor only.
class HeldCharges {
 public:
  /// What one item of cuMemMapArrayAsync names of an array.
  using Place = std::array<std::uint64_t, 9>;
  /// A list that was given to a stream: its context and handle (0: one that is not known), and the list's number.
  struct Given {
    std::uint64_t context, stream, list;
  };

  /// For as long as the object lives.
  void keep(std::shared_ptr<Charge> charge) { kept_.insert(std::move(charge)); }

  /// Memory is mapped to a place, or, by null, taken out of it. What the place has then had until the stream has
  /// passed; null where something may stay there: what one list or several streams do to a place may come in any order,
  /// and what lies there by another name is not looked for.
  std::shared_ptr<Charge> map(const Place& place, std::shared_ptr<Charge> charge, const Given& given) {
    std::shared_ptr<Charge> gone;
    if (const auto found = mapped_.find(place); found != mapped_.end()) {
      const Given& before = found->second.given;
      const bool behind = given.stream != 0 && before.stream == given.stream && before.context == given.context &&
                          before.list != given.list;
      if (behind) gone = std::move(found->second.charge);
      else keep(std::move(found->second.charge));
      mapped_.erase(found);
    }
    if (charge && mapped_.size() < places_max) mapped_[place] = {std::move(charge), given};
    else if (charge) keep(std::move(charge));
    return gone;
  }

 private:
  static constexpr std::size_t places_max = 16384;  // a client may name ever new ones
  struct Mapped {
    std::shared_ptr<Charge> charge;
    Given given;
  };
  std::set<std::shared_ptr<Charge>> kept_;
  std::map<Place, Mapped> mapped_;
};

}  // namespace fargpu::server
