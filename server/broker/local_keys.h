#pragma once
// How clients that came by TCP find this broker's Unix socket and know that it is this broker's (HelloAnswer in
// control.capnp).

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace fargpu::server {

/// Used by the broker's one thread.
class LocalKeys {
 public:
  using Number = std::array<std::byte, 16>;
  struct Pair {
    Number key, proof;
  };

  /// The name of the socket, in the abstract namespace: nobody can guess it before it is taken.
  const std::string& socket_name() const { return socket_name_; }

  /// For a client; good until it is taken back.
  Pair issue();
  void take_back(const Number& key) { proofs_.erase(key); }
  /// The proof that belongs to a key; nothing if there is no such key.
  std::optional<Number> proof_of(std::span<const std::byte> key) const;

 private:
  static Number random();
  static std::string name_of(const Number& number);

  const std::string socket_name_ = name_of(random());
  std::map<Number, Number> proofs_;
};

}  // namespace fargpu::server
