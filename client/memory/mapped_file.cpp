#include "mapped_file.h"

#include <charconv>
#include <fstream>

namespace fargpu::client {

// A line of proc(5)'s maps: BEGIN-END MODE OFFSET DEVICE INODE PATH, with numbers in base 16.
std::string file_mapped_at(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const char* const last = line.data() + line.size();
    std::uint64_t begin = 0, end = 0;
    const auto first = std::from_chars(line.data(), last, begin, 16);
    if (first.ec != std::errc{} || first.ptr == last || *first.ptr != '-') continue;
    if (std::from_chars(first.ptr + 1, last, end, 16).ec != std::errc{}) continue;
    if (address < begin || address >= end) continue;
    const auto path = line.find('/');
    return path == std::string::npos ? std::string() : line.substr(path);
  }
  return {};
}

}  // namespace fargpu::client
