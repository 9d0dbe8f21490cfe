#pragma once
// The words of a command line.

#include <string>
#include <utility>
#include <vector>

namespace fargpu {

/// As they were given, but for options with an empty value: of `--name=` CLI11 would take the next word for the value.
/// They become `--name` and an empty word. What follows `--` is another program's. Lives as long as it is read.
class GivenWords {
 public:
  GivenWords(int count, char** words) {
    bool ours = true;
    for (int i = 0; i < count; ++i) {
      std::string word = words[i];
      ours = ours && word != "--";
      const bool empty = ours && i > 0 && word.starts_with("--") && word.find('=') == word.size() - 1;
      if (empty) word.pop_back();
      words_.push_back(std::move(word));
      if (empty) words_.emplace_back();
    }
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  GivenWords(const GivenWords&) = delete;
  GivenWords& operator=(const GivenWords&) = delete;

  int count() const { return static_cast<int>(words_.size()); }
  char** words() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace fargpu
