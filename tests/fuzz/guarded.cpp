#include "guarded.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "pretended_host.h"

namespace fargpu::fuzz {
namespace {

constexpr std::byte mark{0xC5};

}  // namespace

Guarded::Guarded() : filled_(slots) {
  constexpr std::size_t slot_bytes = bytes_max + front_bytes + page_bytes * 2;
  static_assert(slot_bytes % 8 == 0);
  const std::size_t whole = (slot_bytes + page_bytes - 1) / page_bytes * page_bytes * slots;
  void* const mapped =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  expect(mapped != MAP_FAILED, "no memory for the calls");
  base_ = static_cast<std::byte*>(mapped);
  for (std::size_t slot = 0; slot < slots; ++slot)
    expect(::mprotect(place({slot, 0}), page_bytes, PROT_NONE) == 0, "no guard behind memory for the calls");
}

std::byte* Guarded::place(Piece piece) const {
  constexpr std::size_t slot_bytes =
      (bytes_max + front_bytes + page_bytes * 2 + page_bytes - 1) / page_bytes * page_bytes;
  return base_ + (piece.slot + 1) * slot_bytes - page_bytes - piece.bytes;
}

void Guarded::check_front(Piece piece) const {
  const std::byte* const begin = place(piece) - front_bytes;
  for (std::size_t i = 0; i < front_bytes; i += sizeof(secret))
    expect(std::memcmp(begin + i, &secret, sizeof(secret)) == 0,
           "memory in front of what a call was given was written");
}

void Guarded::check_quiet(std::size_t slot) const {
  const std::size_t bytes = filled_[slot];
  if (bytes == 0) return;
  check_front({slot, bytes});
  const std::byte* const begin = place({slot, bytes});
  expect(std::all_of(begin, begin + bytes, [](std::byte b) { return b == mark; }),
         "memory that a call was given was written after it had returned");
}

void Guarded::fill(Piece piece) const {
  std::byte* const begin = place(piece);
  for (std::size_t i = 0; i < front_bytes; i += sizeof(secret))
    std::memcpy(begin - front_bytes + i, &secret, sizeof(secret));
  std::memset(begin, std::to_integer<int>(mark), piece.bytes);
}

std::byte* Guarded::take(std::size_t bytes) {
  expect(bytes <= bytes_max && taken_.size() < slots - lent_slots, "too much for one call");
  const std::size_t slot = next_++ % (slots - lent_slots);
  check_quiet(slot);
  const Piece& piece = taken_.emplace_back(Piece{slot, bytes});
  filled_[slot] = 0;
  fill(piece);
  return place(piece);
}

void Guarded::call_over() {
  for (const Piece& piece : std::exchange(taken_, {})) {
    check_front(piece);
    fill(piece);
    filled_[piece.slot] = piece.bytes;
  }
}

std::byte* Guarded::lend(std::size_t bytes) {
  expect(bytes <= bytes_max && next_lent_ < lent_slots, "too much is lent");
  const Piece piece{slots - lent_slots + next_lent_++, bytes};
  lent_.push_back(piece);
  fill(piece);
  return place(piece);
}

void Guarded::all_over() {
  call_over();
  for (const Piece& piece : std::exchange(lent_, {})) check_front(piece);
  next_lent_ = 0;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    check_quiet(slot);
    filled_[slot] = 0;
  }
  next_ = 0;
}

}  // namespace fargpu::fuzz
