// The words of a command line.

#include "protocol/given_words.h"

#include <catch2/catch.hpp>

using fargpu::GivenWords;

TEST_CASE("an option with an empty value has one, and what is another program's stays") {
  std::vector<std::string> line{"fargpud", "--nvml=", "--a=b=", "--x=", "--=", "--insecure", "--", "--nvml="};
  std::vector<char*> words;
  for (std::string& word : line) words.push_back(word.data());
  GivenWords given(static_cast<int>(words.size()), words.data(), {"nvml", "a", "insecure"});
  const std::vector<std::string> found(given.words(), given.words() + given.count());
  CHECK(found ==
        std::vector<std::string>{"fargpud", "--nvml", "", "--a=b=", "--x=", "--=", "--insecure", "--", "--nvml="});
  CHECK(given.words()[given.count()] == nullptr);
}
