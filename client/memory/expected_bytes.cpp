#include "expected_bytes.h"

#include <algorithm>

namespace fargpu::client {

std::uint32_t ExpectedBytes::add(By by, std::uint64_t begin, std::uint64_t end, const Context& context) {
  std::uint32_t number = 0;
  if (by == By::connection) {
    number = next_number_;
    next_number_ = std::max(next_number_ + 1, 1u);
  }
  expected_.push_back({begin, end, by, number, &context});
  return number;
}

// So each takes the beginning off a range.
void ExpectedBytes::arrived(std::uint64_t begin, std::uint64_t end, std::uint32_t number) {
  const auto found = std::find_if(expected_.begin(), expected_.end(), [&](const Copy& copy) {
    return copy.by == By::connection && (number == 0 || copy.number == number) && copy.begin == begin &&
           copy.end >= end;
  });
  if (found == expected_.end()) return;
  found->begin = end;
  if (found->begin == found->end) expected_.erase(found);
}

void ExpectedBytes::over(std::uint32_t number) {
  std::erase_if(expected_, [&](const Copy& copy) { return number != 0 && copy.number == number; });
}

void ExpectedBytes::over(By by, std::uint64_t begin, std::uint64_t end) {
  const auto found = std::find_if(expected_.begin(), expected_.end(), [&](const Copy& copy) {
    return copy.by == by && copy.begin == begin && copy.end == end;
  });
  if (found != expected_.end()) expected_.erase(found);
}

void ExpectedBytes::forget(const Context& context) {
  std::erase_if(expected_, [&](const Copy& copy) { return copy.context == &context; });
}

void ExpectedBytes::forget(std::uint64_t begin, std::uint64_t end) {
  std::erase_if(expected_, [&](const Copy& copy) { return copy.begin >= begin && copy.begin < end; });
}

void ExpectedBytes::reading_is_over(std::uint64_t begin, std::uint64_t end) {
  if (const auto found = std::find(read_.begin(), read_.end(), std::pair(begin, end)); found != read_.end())
    read_.erase(found);
}

bool ExpectedBytes::any(std::uint64_t begin, std::uint64_t end) const {
  return std::any_of(expected_.begin(), expected_.end(), [&](const Copy& copy) { return copy.within(begin, end); });
}

bool ExpectedBytes::any(By by, std::uint64_t begin, std::uint64_t end) const {
  return std::any_of(expected_.begin(), expected_.end(),
                     [&](const Copy& copy) { return copy.by == by && copy.within(begin, end); });
}

bool ExpectedBytes::used_by_threads(std::uint64_t begin, std::uint64_t end) const {
  return any(By::thread, begin, end) || std::any_of(read_.begin(), read_.end(), [&](const auto& range) {
           return range.first < end && begin < range.second;
         });
}

std::vector<const Context*> ExpectedBytes::contexts(std::uint64_t begin, std::uint64_t end) const {
  std::vector<const Context*> found;
  for (const Copy& copy : expected_)
    if (copy.within(begin, end)) found.push_back(copy.context);
  return found;
}

ExpectedBytes::Part ExpectedBytes::newest(std::uint64_t begin, std::uint64_t end) const {
  Part part{end - begin, Newest::here};
  for (const Copy& copy : expected_) {
    if (copy.begin <= begin && begin < copy.end) {
      part.bytes = std::min(part.bytes, std::min(copy.end, end) - begin);
      // Where some come otherwise than by the connection, the worker's copy does not have all.
      const bool all_at_worker = copy.by == By::connection && part.newest != Newest::coming;
      part.newest = all_at_worker ? Newest::at_worker : Newest::coming;
    } else if (copy.begin > begin && copy.begin < end) {
      part.bytes = std::min(part.bytes, copy.begin - begin);
    }
  }
  return part;
}

}  // namespace fargpu::client
