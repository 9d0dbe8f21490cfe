#pragma once
// How much a folder of files that are named by their contents holds, without looking at each: one small file in it that
// all workers of the host keep.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

namespace fargpu::server {

/// The account is a hint that errs upwards: a file is charged before it is written, and a worker that dies in between
/// leaves a charge without a file. A full count puts it right, and so it does where the account is missing or damaged.
class FolderAccount {
 public:
  struct Used {
    std::uint64_t bytes = 0;
    std::uint64_t files = 0;
  };

  explicit FolderAccount(const std::filesystem::path& folder) : path_(folder / file_name) {}

  /// Adds `more` and says whether the folder then holds more than `limit`, as it must be taken to where the account is
  /// missing.
  bool charge(Used more, Used limit) const;
  /// Takes a charge back: there is no such file after all.
  void give_back(Used less) const;
  /// Where the folder still holds more than `limit`, has `count` make room, and takes what it says is left. Other
  /// workers wait.
  void recount(Used limit, const std::function<Used()>& count) const;

  /// What it says; nothing where it is missing or damaged. Does not wait for workers.
  std::optional<Used> read() const;

  static constexpr const char* file_name = ".account";

 private:
  const std::filesystem::path path_;
};

}  // namespace fargpu::server
