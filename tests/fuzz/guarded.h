#pragma once
// Memory that calls are lent: each piece ends where a page begins that nobody may touch, and what
// is around it is looked at.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fargpu::fuzz {

class Guarded {
 public:
  static constexpr std::size_t bytes_max = 64u << 10;  ///< of a piece

  Guarded();

  /// A piece for one call: full of the mark, with secrets in front of it and an end that is
  /// followed by nothing.
  std::byte* take(std::size_t bytes);
  template <class T>
  T* take(std::size_t count = 1) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  /// The call has returned: what is in front of its pieces must be as it was. They may not be
  /// written from here on.
  void call_over();
  /// As take(), but until all_over().
  std::byte* lend(std::size_t bytes);
  /// Everything is over: nothing was written later.
  void all_over();

 private:
  struct Piece {
    std::size_t slot = 0, bytes = 0;
  };
  std::byte* place(Piece piece) const;
  void check_front(Piece piece) const;
  void check_quiet(std::size_t slot) const;
  void fill(Piece piece) const;

  static constexpr std::size_t slots = 128, lent_slots = 80, front_bytes = 256, page_bytes = 4096;
  std::byte* base_;
  std::size_t next_ = 0, next_lent_ = 0;
  std::vector<Piece> taken_, lent_;
  std::vector<std::size_t> filled_;  // by slot: how many bytes at its end hold mark and secrets
};

}  // namespace fargpu::fuzz
