#pragma once
// A program that does what it is told, line by line, so that two of them can take turns under one script.
//
//   CASE key=value...        on stdin; the answer is one line of JSON, {"error": ...} if it could not be done
//
// Every answer has the time on the clock and the CPU time of the process and of the asking thread, in seconds.

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

inline double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double now() { return seconds_of(CLOCK_MONOTONIC); }
inline double thread_cpu() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
inline double process_cpu() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

class Request {
 public:
  explicit Request(const std::string& line) {
    std::istringstream words(line);
    words >> name;
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) throw std::invalid_argument("'" + word + "' is not key=value");
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  std::uint64_t number(const std::string& key) const {
    const std::string value = text(key);
    std::size_t read = 0;
    const std::uint64_t number = std::stoull(value, &read);
    if (read != value.size()) throw std::invalid_argument(key + " is '" + value + "', which is no number");
    return number;
  }

  std::uint64_t number(const std::string& key, std::uint64_t otherwise) const {
    return values_.contains(key) ? number(key) : otherwise;
  }

  std::string text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw std::invalid_argument(name + " needs " + key + "=");
    return found->second;
  }

  std::string text(const std::string& key, const std::string& otherwise) const {
    return values_.contains(key) ? text(key) : otherwise;
  }

  std::string name;

 private:
  std::map<std::string, std::string> values_;
};

class Answer {
 public:
  void add(const std::string& key, double value) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + key + "\": " + number(value);
  }

  void add_list(const std::string& key, const std::vector<double>& values) {
    fields_ += (fields_.empty() ? "\"" : ", \"") + key + "\": [";
    for (std::size_t i = 0; i < values.size(); ++i) fields_ += (i ? ", " : "") + number(values[i]);
    fields_ += "]";
  }

  /// The median and the 99th percentile of single measurements.
  void add_samples(const std::string& key, std::vector<double> samples) {
    if (samples.empty()) throw std::invalid_argument("nothing was measured: the count is 0");
    std::sort(samples.begin(), samples.end());
    add(key, samples[samples.size() / 2]);
    add(key + "_p99", samples[samples.size() * 99 / 100]);
  }

  std::string json() const { return "{" + fields_ + "}"; }

 private:
  static std::string number(double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.12g", value);
    return text;
  }

  std::string fields_;
};

using Case = std::function<void(const Request&, Answer&)>;

/// Answers until stdin ends.
inline int answer_requests(const std::map<std::string, Case>& cases) {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const Request request(line);
      const auto found = cases.find(request.name);
      if (found == cases.end()) throw std::invalid_argument("there is no case '" + request.name + "'");
      Answer answer;
      const double clock = now(), process = process_cpu(), thread = thread_cpu();
      found->second(request, answer);
      answer.add("thread_cpu", thread_cpu() - thread);
      answer.add("cpu", process_cpu() - process);
      answer.add("whole", now() - clock);
      std::cout << answer.json() << std::endl;
    } catch (const std::exception& error) {
      std::string text = error.what();
      std::replace(text.begin(), text.end(), '"', '\'');
      std::cout << "{\"error\": \"" << text << "\"}" << std::endl;
    }
  }
  return 0;
}

}  // namespace bench
