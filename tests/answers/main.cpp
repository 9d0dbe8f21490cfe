// Makes every call of the driver API in the ways of cases.cpp and writes what it answers, in the form that compare.py
// reads. Cases are made in children: many in one, and the next child goes on where one has crashed, hung, or lost its
// context.

#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "play.h"
#include "world.h"

namespace {

using namespace answers;
using Clock = std::chrono::steady_clock;

constexpr std::size_t calls_in_child = 24;         ///< of which the cases are made in one process, if nothing breaks
constexpr std::size_t lost_max = 20;               ///< cases for which no process could be begun
constexpr std::size_t calls_in_broken_child = 60;  ///< of those with one case each, which need no context or break it

struct Options {
  std::size_t jobs = 2;
  std::size_t sample = 1;       ///< one case of so many
  int seconds = 20;             ///< for a case
  int limit = 0;                ///< seconds after which cases are left out; 0: none
  bool undefined = false;       ///< make calls whose answer is not defined too
  const char* only = nullptr;   ///< calls whose name has this in it
  std::set<std::string> again;  ///< "SYMBOL CASE": if any, these alone, each in a process of its own
  std::FILE* out = stdout;
};

enum class Kind : std::uint8_t { plain, before_init, after_error };

/// Cases that children make one after the other.
struct Batch {
  Kind kind;
  std::vector<std::size_t> cases;  // indices
  std::size_t done = 0;
  bool stuck = false;  // the last child ended before it began a case
};

class Run {
 public:
  explicit Run(const Options& options) : options_(options) { collect(); }

  void all() {
    std::size_t next = 0;
    const Clock::time_point begun = Clock::now();
    while (next < batches_.size() || !children_.empty()) {
      while (children_.size() < options_.jobs && next < batches_.size()) start(batches_[next++]);
      wait();
      if (!options_.limit || Clock::now() - begun < std::chrono::seconds(options_.limit)) continue;
      for (const Child& child : children_) ::kill(child.pid, SIGKILL);
      std::fprintf(stderr, "answers: %zu of %zu cases in %d s; the rest is left out\n", answered(), cases_.size(),
                   options_.limit);
      return;
    }
  }

  void write() const {
    const Call* call = nullptr;
    std::vector<std::pair<std::string, std::string>> groups;
    const auto flush = [&] {
      if (call && !groups.empty()) std::fprintf(options_.out, "%s\n", call->symbol);
      for (const auto& [answer, names] : groups)
        std::fprintf(options_.out, "  %s | %s\n", answer.c_str(), names.c_str());
      groups.clear();
    };
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].call != call) {
        flush();
        call = cases_[i].call;
      }
      if (answers_[i].empty()) continue;
      const auto same = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == answers_[i]; });
      if (same == groups.end()) groups.emplace_back(answers_[i], cases_[i].name);
      else same->second += "; " + cases_[i].name;
    }
    flush();
  }

  std::size_t answered() const {
    return static_cast<std::size_t>(
        std::count_if(answers_.begin(), answers_.end(), [](auto& a) { return !a.empty(); }));
  }
  std::size_t processes() const { return processes_; }

 private:
  struct Child {
    pid_t pid;
    int pipe;
    Batch* batch;
    std::string text;     // read and not understood yet
    std::size_t current;  // place in the batch of the case that was begun; the end of it: none
    Clock::time_point since;
  };

  void collect() {
    std::map<Kind, Batch> single;
    Batch plain{Kind::plain, {}};
    std::size_t calls_in_batch = 0;
    const auto flush = [&](Batch& batch) {
      if (!batch.cases.empty()) batches_.push_back(batch);
      batch = {batch.kind, {}};
    };
    single[Kind::before_init].kind = Kind::before_init;
    single[Kind::after_error].kind = Kind::after_error;
    for (std::size_t c = 0; c < call_count; ++c) {
      const Call& call = calls[c];
      if (options_.only && !std::strstr(call.symbol, options_.only)) continue;
      if (call.alone || calls_in_batch == calls_in_child) {
        flush(plain);
        calls_in_batch = 0;
      }
      for (Case& one : cases_of(call)) {
        if (one.undefined && !options_.undefined) continue;
        if (!options_.again.empty()) {
          if (!options_.again.contains(call.symbol + (" " + one.name))) continue;
          const Kind kind = one.state == State::before_init   ? Kind::before_init
                            : one.state == State::after_error ? Kind::after_error
                                                              : Kind::plain;
          batches_.push_back({kind, {cases_.size()}});
          cases_.push_back(std::move(one));
          continue;
        }
        if (std::hash<std::string>{}(std::string(call.symbol) + one.name) % options_.sample) continue;
        const std::size_t index = cases_.size();
        if (one.state == State::before_init) single[Kind::before_init].cases.push_back(index);
        else if (one.state == State::after_error && call.alone) batches_.push_back({Kind::after_error, {index}});
        else if (one.state == State::after_error) single[Kind::after_error].cases.push_back(index);
        else plain.cases.push_back(index);
        cases_.push_back(std::move(one));
      }
      ++calls_in_batch;
      if (call.alone) calls_in_batch = calls_in_child;
      for (auto& [kind, batch] : single) {
        if (batch.cases.size() >= calls_in_broken_child) flush(batch);
      }
    }
    flush(plain);
    for (auto& [kind, batch] : single) flush(batch);
    answers_.resize(cases_.size());
  }

  void start(Batch& batch) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC)) std::abort();
    std::fflush(options_.out);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      child(batch, ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    ++processes_;
    children_.push_back({pid, ends[0], &batch, {}, batch.cases.size(), Clock::now()});
  }

  static void say(int pipe, char what, std::size_t place, const std::string& text) {
    std::string line = std::string(1, what) + std::to_string(place) + " " + text + "\n";
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t count = ::write(pipe, line.data() + done, line.size() - done);
      if (count <= 0) ::_exit(1);
      done += static_cast<std::size_t>(count);
    }
  }

  /// Makes the rest of a batch, until something breaks.
  void child(const Batch& batch, int pipe) const {
    try {
      if (batch.kind != Kind::before_init) begin_process();
      if (batch.kind == Kind::after_error) {
        std::vector<Case> rest;
        for (std::size_t i = batch.done; i < batch.cases.size(); ++i) rest.push_back(cases_[batch.cases[i]]);
        play_after_error(
            rest, [&](std::size_t i) { say(pipe, 'B', batch.done + i, ""); },
            [&](std::size_t i, const Answer& answer) { say(pipe, 'A', batch.done + i, answer.text); });
        return;
      }
      for (std::size_t i = batch.done; i < batch.cases.size(); ++i) {
        say(pipe, 'B', i, "");
        const Case& one = cases_[batch.cases[i]];
        const Answer answer = batch.kind == Kind::before_init ? play_before_init(one) : play(one);
        say(pipe, 'A', i, answer.text);
        if (answer.broken) return;
      }
    } catch (const NoFixture& missing) {
      std::fprintf(stderr, "answers: a process cannot begin: %s\n", missing.what());
    }
  }

  void wait() {
    std::vector<pollfd> polled;
    for (const Child& child : children_) polled.push_back({child.pipe, POLLIN, 0});
    ::poll(polled.data(), polled.size(), 500);
    std::vector<Child> left;
    std::vector<Batch*> again;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      bool ended = false;
      if (polled[i].revents) {
        char text[8192];
        const ssize_t count = ::read(child.pipe, text, sizeof text);
        ended = count <= 0;
        if (!ended) understand(child, {text, static_cast<std::size_t>(count)});
      }
      const bool late = Clock::now() - child.since > std::chrono::seconds(options_.seconds);
      if (!ended && late) ::kill(child.pid, SIGKILL);
      if (!ended && !late) {
        left.push_back(std::move(child));
        continue;
      }
      int status = 0;
      ::waitpid(child.pid, &status, 0);
      ::close(child.pipe);
      Batch& batch = *child.batch;
      if (child.current < batch.cases.size()) {
        const std::string how = late                  ? "hangs"
                                : WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                                      : "ends with " + std::to_string(WEXITSTATUS(status));
        answers_[batch.cases[child.current]] = how;
        batch.done = child.current + 1;
        batch.stuck = false;
      } else if (batch.stuck && batch.done < batch.cases.size()) {
        // Twice in a row nothing could be begun.
        answers_[batch.cases[batch.done++]] = "no process";
        if (++lost_ >= lost_max) {
          std::fprintf(stderr, "answers: too many processes cannot begin: is there a driver and a device?\n");
          std::exit(3);
        }
      } else {
        batch.stuck = true;
      }
      if (batch.done < batch.cases.size()) again.push_back(&batch);
    }
    children_ = std::move(left);
    for (Batch* batch : again) start(*batch);
  }

  void understand(Child& child, std::string text) {
    child.text += text;
    for (std::size_t end; (end = child.text.find('\n')) != std::string::npos; child.text.erase(0, end + 1)) {
      const std::string line = child.text.substr(0, end);
      const std::size_t space = line.find(' ');
      const std::size_t place = std::strtoull(line.c_str() + 1, nullptr, 10);
      child.since = Clock::now();
      child.batch->stuck = false;
      if (line[0] == 'B') {
        child.current = place;
      } else {
        answers_[child.batch->cases[place]] = line.substr(space + 1);
        child.batch->done = place + 1;
        child.current = child.batch->cases.size();
      }
    }
  }

  const Options options_;
  std::vector<Case> cases_;
  std::vector<std::string> answers_;
  std::vector<Batch> batches_;
  std::vector<Child> children_;
  std::size_t processes_ = 0;
  std::size_t lost_ = 0;
};

/// What answered, in a child: this process stays without a driver, so that it can fork.
void write_header(std::FILE* out) {
  const pid_t child = ::fork();
  if (child == 0) {
    int version = 0, count = 0;
    char name[256] = "?";
    (void)cuInit(0);
    (void)cuDriverGetVersion(&version);
    (void)cuDeviceGetCount(&count);
    (void)cuDeviceGetName(name, sizeof name, 0);
    std::fprintf(out, "# driver %d, %d x %s\n", version, count, name);
    std::fflush(out);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

constexpr const char* usage =
    "usage: answers [--jobs N] [--sample N] [--seconds N] [--limit N] [--undefined] [--only TEXT] [--again FILE]\n"
    "               [--out FILE]\n"
    "  --jobs N      processes at once (2)\n"
    "  --sample N    one case of N, chosen by name\n"
    "  --seconds N   after which a call hangs (20)\n"
    "  --limit N     seconds after which the rest is left out (none is)\n"
    "  --undefined   also calls of which the driver's answer is not defined\n"
    "  --only TEXT   calls with this in their names\n"
    "  --again FILE  the cases that stand there, a line each, \"SYMBOL CASE\": each in a process of its own\n"
    "  --out FILE    where the answers go (standard output)\n";

}  // namespace

int main(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const char* const value = i + 1 < count ? arguments[i + 1] : nullptr;
    const auto number = [&] { return std::max(1l, std::strtol(value, nullptr, 10)); };
    if (name == "--undefined") {
      options.undefined = true;
      continue;
    }
    if (!value || (name != "--jobs" && name != "--sample" && name != "--seconds" && name != "--only" &&
                   name != "--limit" && name != "--again" && name != "--out")) {
      std::fputs(usage, stderr);
      return 2;
    }
    ++i;
    if (name == "--jobs") options.jobs = static_cast<std::size_t>(number());
    if (name == "--sample") options.sample = static_cast<std::size_t>(number());
    if (name == "--seconds") options.seconds = static_cast<int>(number());
    if (name == "--limit") options.limit = static_cast<int>(number());
    if (name == "--only") options.only = value;
    if (name == "--again") {
      std::ifstream file(value);
      for (std::string line; std::getline(file, line);) options.again.insert(line);
      if (options.again.empty()) {
        std::fprintf(stderr, "answers: no case stands in %s\n", value);
        return 2;
      }
    }
    if (name == "--out" && !(options.out = std::fopen(value, "w"))) {
      std::perror(value);
      return 2;
    }
  }
  const auto begun = Clock::now();
  write_header(options.out);
  Run run(options);
  run.all();
  run.write();
  std::fprintf(stderr, "answers: %zu cases in %zu processes, %.1f s\n", run.answered(), run.processes(),
               std::chrono::duration<double>(Clock::now() - begun).count());
  return 0;
}
