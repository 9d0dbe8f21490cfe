#pragma once
// How what comes out of a call is written: values that differ from run to run (addresses, handles, times) by what they
// are, all others as they are.

#include <map>
#include <string>
#include <vector>

#include "call.h"
#include "world.h"

namespace answers {

/// What lies where the arguments point to, before the call and after it.
class Outputs {
 public:
  /// Remembers what lies there now.
  Outputs(const Call& call, const Slot* slots, const World& world);
  /// What is different now, each as ` parameter=value`; without the value, `*`, where those of the case are masked.
  std::string changed(bool masked) const;

 private:
  struct Place {
    const Parameter* parameter;
    const unsigned char* at;
    std::vector<unsigned char> before;
  };
  std::string text_of(const Place& place) const;

  const World& world_;
  std::vector<Place> places_;
};

/// A number that depends on all of some bytes.
std::string hash_of(const unsigned char* bytes, std::size_t count);

}  // namespace answers
