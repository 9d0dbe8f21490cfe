#include "nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace fargpu {
namespace {

// How many letters must be changed, added or left out to make one of the other.
std::size_t changes_between(const std::string& one, const std::string& other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t before = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j)
      before = std::exchange(row[j + 1], std::min({before + (one[i] != other[j]), row[j] + 1, row[j + 1] + 1}));
  }
  return row.back();
}

// Short for the other, or a longer form of it.
bool begins_alike(const std::string& one, const std::string& other) {
  constexpr std::size_t least = 3;  // letters
  const auto letters = [](const std::string& name) {
    return name.substr(std::min(name.find_first_not_of('-'), name.size()));
  };
  const std::string a = letters(one), b = letters(other);
  return std::min(a.size(), b.size()) >= least && (a.starts_with(b) || b.starts_with(a));
}

}  // namespace

std::string nearest(const std::string& written, const std::vector<std::string>& names) {
  constexpr std::size_t long_name = 100;  // nobody meant that
  std::string best;
  std::size_t least = written.size() > long_name ? 0 : 1 + std::max<std::size_t>(1, written.size() / 3);
  for (const std::string& name : names)
    if (const std::size_t changes = changes_between(written, name); changes < least) {
      least = changes;
      best = name;
    }
  if (best.empty() && written.size() <= long_name)
    for (const std::string& name : names)
      if (begins_alike(written, name)) return name;
  return best;
}

std::string perhaps(const std::string& written, const std::vector<std::string>& names) {
  const std::string meant = nearest(written, names);
  return meant.empty() ? "" : "; perhaps '" + meant + "' is meant";
}

}  // namespace fargpu
