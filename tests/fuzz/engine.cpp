// What stands in for libFuzzer, which GCC has none of, and is told in the same words: calls a target with its seeds and
// the files of the folders it is given, changed at random for so long, or with single files. Where the target's code
// was compiled with -fsanitize-coverage=trace-pc, inputs that lead somewhere new are kept and changed further. An input
// that ends the process is written to a file first; the program given that file repeats it.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>

#include "fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

// --- where the target has been: pairs of places, one behind the other, and roughly how often ------------------------

constexpr std::size_t places = 1u << 16;
std::array<std::uint8_t, places> visited;
std::array<std::uint8_t, places> known;
// Which of them were visited, so that nobody has to look at all after each input.
std::array<std::uint16_t, places> touched;
std::size_t touched_count;
thread_local std::uintptr_t last_place;

// How often, in powers of two.
std::uint8_t class_of(std::uint8_t count) {
  std::uint8_t bit = 1;
  while (count > 1 && bit < 128) count = static_cast<std::uint8_t>(count / 2), bit = static_cast<std::uint8_t>(bit * 2);
  return bit;
}

bool something_new() {
  bool found = false;
  for (std::size_t n = 0; n < touched_count; ++n) {
    const std::size_t i = touched[n];
    const std::uint8_t bit = class_of(visited[i]);
    found = found || !(known[i] & bit);
    known[i] |= bit;
    visited[i] = 0;
  }
  touched_count = 0;
  return found;
}

}  // namespace

// Called by instrumented code at the beginning of every block.
extern "C" void __sanitizer_cov_trace_pc() {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  const std::size_t place = (here ^ last_place) % places;
  std::uint8_t& count = visited[place];
  if (count == 0 && touched_count < places) touched[touched_count++] = static_cast<std::uint16_t>(place);
  if (count < 255) ++count;
  last_place = (here >> 1) * 0x9e3779b1u;
}

// Freed memory is given back soon: inputs are many and small.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=4"; }

namespace fargpu::fuzz {
namespace {

// Of the processor's time; and of anybody's, which passes on a busy machine too.
constexpr long busy_seconds_max = 10;
constexpr std::size_t corpus_max = 20'000;

unsigned seconds_max = 60;
std::string artifact_prefix;
const Input* now = nullptr;  // the input under way

// In a handler of a signal: nothing but system calls.
void keep_input() {
  if (!now) return;
  static char path[256];
  std::snprintf(path, sizeof(path), "%scrash-%d", artifact_prefix.c_str(), static_cast<int>(::getpid()));
  const int file = ::open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  const bool written = file >= 0 && ::write(file, now->data(), now->size()) == static_cast<ssize_t>(now->size());
  std::fprintf(stderr, written ? "the input is in %s\n" : "the input could not be written to %s\n", path);
  now = nullptr;
}

void on_signal(int signal) {
  if (signal == SIGALRM || signal == SIGPROF) std::fprintf(stderr, "an input took too long\n");
  keep_input();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void run(const Input& input) {
  now = &input;
  ::alarm(seconds_max);
  const itimerval busy{{0, 0}, {busy_seconds_max, 0}};
  ::setitimer(ITIMER_PROF, &busy, nullptr);
  // A copy of exactly this length, so that a step beyond is seen.
  const std::vector<std::uint8_t> copy(input);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  now = nullptr;
}

Input contents_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "%s cannot be read\n", file.c_str());
    std::exit(2);
  }
  return Input(std::istreambuf_iterator<char>(in), {});
}

// --- changes --------------------------------------------------------------------------------------------------------

class Changes {
 public:
  Changes(std::uint64_t seed, std::size_t bytes_max) : random_(seed), bytes_max_(bytes_max) {}

  std::size_t below(std::size_t end) { return end < 2 ? 0 : random_() % end; }

  Input of(const std::vector<Input>& corpus) {
    Input input = corpus[below(corpus.size())];
    for (std::size_t left = 1 + below(6); left > 0; --left) change(input, corpus[below(corpus.size())]);
    if (input.size() > bytes_max_) input.resize(bytes_max_);
    return input;
  }

 private:
  void change(Input& input, const Input& other) {
    const std::size_t place = below(input.size());
    const auto at = [&](std::size_t offset) { return input.begin() + static_cast<std::ptrdiff_t>(offset); };
    if (input.empty()) {
      input = other;
      return;
    }
    switch (below(9)) {
      case 0: input[place] = static_cast<std::uint8_t>(input[place] ^ 1u << below(8)); return;
      case 1: input[place] = static_cast<std::uint8_t>(random_()); return;
      case 2: {  // a number at a limit
        static constexpr std::uint64_t numbers[] = {0,          1,          2,          7,           8,
                                                    15,         16,         31,         32,          63,
                                                    64,         127,        128,        255,         256,
                                                    4095,       4096,       0x7fff,     0xffff,      0x10000,
                                                    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff,
                                                    ~0ull,      ~0ull - 7};
        const std::uint64_t number = numbers[below(std::size(numbers))];
        std::memcpy(input.data() + place, &number,
                    std::min<std::size_t>(std::size_t{1} << below(4), input.size() - place));
        return;
      }
      case 3: {  // a little more or less
        const std::size_t bytes = std::min<std::size_t>(std::size_t{1} << below(4), input.size() - place);
        std::uint64_t number = 0;
        std::memcpy(&number, input.data() + place, bytes);
        number += below(33) - 16;
        std::memcpy(input.data() + place, &number, bytes);
        return;
      }
      case 4: input.erase(at(place), at(place + 1 + below(std::min<std::size_t>(input.size() - place, 64)))); return;
      case 5: {
        Input more(1 + below(32));
        for (std::uint8_t& byte : more) byte = static_cast<std::uint8_t>(random_());
        input.insert(at(place), more.begin(), more.end());
        return;
      }
      case 6: {  // a piece of itself once more
        const Input piece(at(place), at(place + 1 + below(input.size() - place)));
        const std::size_t to = below(input.size());
        input.insert(at(to), piece.begin(), piece.end());
        return;
      }
      case 7: {  // a piece of another
        if (other.empty()) return;
        const std::size_t from = below(other.size());
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        const auto end = begin + static_cast<std::ptrdiff_t>(1 + below(other.size() - from));
        if (below(2)) input.insert(at(place), begin, end);
        else
          std::copy_n(begin, std::min<std::ptrdiff_t>(end - begin, static_cast<std::ptrdiff_t>(input.size() - place)),
                      at(place));
        return;
      }
      default: input.resize(place);
    }
  }

  std::mt19937_64 random_;
  const std::size_t bytes_max_;
};

}  // namespace

void broken(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace fargpu::fuzz

int main(int count, char** arguments) {
  using namespace fargpu::fuzz;
  double seconds = 0;
  std::uint64_t runs = 0, seed = 1;
  std::size_t bytes_max = 4096;
  std::vector<std::string> files, seed_files;
  for (const std::string argument : std::span(arguments + 1, arguments + count)) {
    const std::size_t equals = argument.find('=');
    const std::string option = argument.substr(0, equals),
                      value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (option == "-max_total_time") {
      seconds = std::stod(value);
    } else if (option == "-runs") {
      runs = std::stoull(value);
    } else if (option == "-seed") {
      seed = std::stoull(value);
    } else if (option == "-max_len") {
      bytes_max = std::stoull(value);
    } else if (option == "-timeout") {
      seconds_max = static_cast<unsigned>(std::stoul(value));
    } else if (option == "-artifact_prefix") {
      artifact_prefix = value;
    } else if (argument.starts_with('-')) {
      std::fprintf(stderr,
                   "usage: %s [-max_total_time=SECONDS] [-runs=N] [-seed=N] [-max_len=BYTES] [-timeout=SECONDS] "
                   "[-artifact_prefix=PATH] "
                   "[FOLDER...|FILE...]\n",
                   arguments[0]);
      return 2;
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument))
        seed_files.push_back(entry.path().string());
    } else {
      files.push_back(argument);
    }
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGALRM, SIGPROF}) ::signal(signal, on_signal);
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_input);

  if (!files.empty()) {
    for (const std::string& file : files) run(contents_of(file));
    return 0;
  }
  std::vector<Input> corpus = seeds();
  if (corpus.empty()) broken("a target without seeds");
  std::sort(seed_files.begin(), seed_files.end());
  for (const std::string& file : seed_files) corpus.push_back(contents_of(file));
  for (const Input& input : corpus) {
    run(input);
    bytes_max = std::max(bytes_max, input.size());
  }
  something_new();
  Changes changes(seed, bytes_max);
  std::uint64_t done = corpus.size();
  const auto begin = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  while ((runs == 0 && seconds == 0) ? false : (runs == 0 || done < runs) && (seconds == 0 || spent() < seconds)) {
    Input input = changes.of(corpus);
    run(input);
    ++done;
    if (something_new() && corpus.size() < corpus_max) corpus.push_back(std::move(input));
  }
  std::printf("Done %llu runs in %.0f second(s), %zu inputs kept\n", static_cast<unsigned long long>(done), spent(),
              corpus.size());
  std::fflush(nullptr);
  if (at_end) at_end();
  std::_Exit(0);  // what the target keeps for all inputs is nobody's to take down
}
