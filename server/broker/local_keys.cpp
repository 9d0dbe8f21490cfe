#include "local_keys.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>

#include "protocol/errors.h"

namespace fargpu::server {

LocalKeys::Number LocalKeys::random() {
  Number number;
  if (::getrandom(number.data(), number.size(), 0) != static_cast<ssize_t>(number.size()))
    throw SystemError("no random numbers");
  return number;
}

std::string LocalKeys::name_of(const Number& number) {
  std::string name = "fargpud-";
  for (const std::byte byte : number) name += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return name;
}

LocalKeys::Pair LocalKeys::issue() {
  const Pair pair{random(), random()};
  proofs_[pair.key] = pair.proof;
  return pair;
}

std::optional<LocalKeys::Number> LocalKeys::proof_of(std::span<const std::byte> key) const {
  Number number;
  if (key.size() != number.size()) return std::nullopt;
  std::copy(key.begin(), key.end(), number.begin());
  const auto found = proofs_.find(number);
  return found == proofs_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace fargpu::server
