#pragma once
// The words of a command line.

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fargpu {

/// As they were given, but for options with an empty value: of `--name=` CLI11 would take the next word for the value.
/// They become `--name` and an empty word. Lives as long as it is read.
class GivenWords {
 public:
  /// `options`: names without the dashes. Others, and what follows `--`, are another program's.
  GivenWords(int count, char** words, const std::set<std::string, std::less<>>& options) {
    bool ours = true;
    for (int i = 0; i < count; ++i) {
      std::string word = words[i];
      ours = ours && word != "--";
      const bool empty = ours && i > 0 && word.starts_with("--") && word.ends_with('=') &&
                         options.contains(std::string_view(word).substr(2, word.size() - 3));
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

/// Names of all options with a value of a command line of CLI11's, and of its commands.
template <class App>
void add_option_names(const App& app, std::set<std::string, std::less<>>& names) {
  for (const auto* const option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    for (const std::string& name : option->get_lnames()) names.insert(name);
  }
  for (const auto* const command : app.get_subcommands([](const App*) { return true; }))
    add_option_names(*command, names);
}

}  // namespace fargpu
