#include "gang.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "client/base/log.h"
#include "client/base/threads.h"
#include "placement.h"
#include "pool_contacts.h"
#include "protocol/text.h"

namespace fargpu::client {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using Check = std::function<void(ControlConnection&)>;

// For how long one host is waited for while leases of others are held.
constexpr std::chrono::milliseconds hold_max = 2s;
// A refusal does not advise a client to wait that asks with a wait, however short.
constexpr std::chrono::milliseconds least_wait = 1ms;
// After that long a host that did not answer may be back.
constexpr std::chrono::milliseconds back_max = 1s;

struct Part {
  PoolContacts::Contact contact;
  std::uint32_t gpus;
};

void take_facts(GangMember& member, wire::LeaseAnswer::Reader answer) {
  if (!answer.hasFacts())
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    member.broker->name() + " is of a release that serves no program with GPUs of several hosts");
  member.facts = read_facts(answer.getFacts());
}

std::string wish_text(const LeaseOptions& wish) {
  return so_many(wish.gpus, "GPU") + (wish.memory_bytes > 0 ? " with " + bytes_text(wish.memory_bytes) : "");
}

// A lease of so many devices at the host, held by the connection.
GangMember hold(std::unique_ptr<ControlConnection> broker, const PoolHost& host, LeaseOptions wish, std::uint32_t gpus,
                std::chrono::milliseconds wait) {
  GangMember member{host, gpus, std::move(broker), {}};
  wish.gpus = gpus;
  wish.hosts = 1;
  wish.wait = wait;
  member.broker->ask_for_lease(wish, /*hold=*/true,
                               [&](wire::LeaseAnswer::Reader answer) { take_facts(member, answer); }, {});
  member.gpus = static_cast<std::uint32_t>(member.facts.devices.size());
  return member;
}

// Which hosts, and how many devices of each; empty if they do not have enough now.
std::vector<Part> plan(std::vector<PoolContacts::Contact> contacts, const LeaseOptions& wish) {
  std::erase_if(contacts, [](const auto& contact) { return contact.offer.free == 0; });
  std::vector<Part> parts;
  if (wish.gpus == 0) {
    for (auto& contact : contacts)
      if (parts.size() < wish.hosts) parts.push_back({std::move(contact), 0});
    return parts;
  }
  const auto alone = std::find_if(contacts.begin(), contacts.end(),
                                  [&](const auto& contact) { return contact.offer.free >= wish.gpus; });
  if (alone != contacts.end()) {
    parts.push_back({std::move(*alone), wish.gpus});
    return parts;
  }
  std::stable_sort(contacts.begin(), contacts.end(),
                   [](const auto& one, const auto& other) { return one.offer.free > other.offer.free; });
  std::uint32_t missing = wish.gpus;
  for (auto& contact : contacts) {
    if (missing == 0 || parts.size() == wish.hosts) break;
    const std::uint32_t share = std::min(missing, contact.offer.free);
    missing -= share;
    parts.push_back({std::move(contact), share});
  }
  if (missing > 0) parts.clear();
  return parts;
}

// What no waiting mends, if all hosts have answered; empty where there may be room later.
std::string never(const std::vector<PoolContacts::Contact>& contacts, const LeaseOptions& wish, std::size_t hosts) {
  if (wish.gpus == 0 || contacts.size() < hosts) return "";
  std::vector<std::uint32_t> most;
  for (const auto& contact : contacts) most.push_back(contact.offer.large_enough);
  std::sort(most.begin(), most.end(), std::greater<>());
  const std::uint32_t all = std::accumulate(most.begin(), most.end(), 0u);
  if (most.size() > wish.hosts) most.resize(wish.hosts);
  const std::uint32_t together = std::accumulate(most.begin(), most.end(), 0u);
  if (together >= wish.gpus) return "";
  return fmt::format("no {} of FARGPU_POOL could ever give {}: they have {} for it{}; ask for {}{}",
                     so_many(wish.hosts, "host"), wish_text(wish), so_many(together, "GPU"),
                     all > together ? fmt::format(", and all hosts together {}", all) : "",
                     together > 0 ? "fewer" : "less", all >= wish.gpus ? ", or allow more hosts with --hosts" : "");
}

// All or, with the reason, none: what was held is let go.
std::vector<GangMember> take(std::vector<Part> parts, const LeaseOptions& wish, const Check& check,
                             Clock::time_point until) {
  std::sort(parts.begin(), parts.end(),
            [](const Part& one, const Part& other) { return one.contact.offer.id < other.contact.offer.id; });
  std::vector<std::pair<std::size_t, GangMember>> held;
  for (Part& part : parts) {
    check(*part.contact.broker);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const auto wait = std::clamp(left, least_wait, hold_max);
    held.emplace_back(part.contact.place,
                      hold(std::move(part.contact.broker), part.contact.host, wish, part.gpus, wait));
  }
  std::sort(held.begin(), held.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<GangMember> members;
  for (auto& [place, member] : held) members.push_back(std::move(member));
  return members;
}

// Why the others do not count.
std::string silent_text(const std::vector<DialError>& errors) {
  std::string text;
  for (const DialError& error : errors) {
    std::string_view what = error.what();
    if (what.ends_with(doctor_hint)) what.remove_suffix(doctor_hint.size());
    text += "; " + std::string(what);
  }
  return text;
}

// At all these hosts at once, which the pool has chosen if the job is `placed`; what went wrong is told of each.
std::pair<std::vector<GangMember>, std::vector<DialError>> join_all(const std::vector<Placement::Part>& parts,
                                                                    const LeaseOptions& wish, const Check& check,
                                                                    bool placed) {
  struct Answers {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t missing;
    std::vector<std::optional<GangMember>> members;
    std::vector<std::optional<DialError>> errors;
  };
  const auto answers = std::make_shared<Answers>();
  answers->missing = parts.size();
  answers->members.resize(parts.size());
  answers->errors.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    start_thread("fargpu-contact", [answers, i, part = parts[i], wish, check, placed] {
      const PoolHost& host = part.host;
      std::optional<GangMember> member;
      std::optional<DialError> error;
      try {
        try {
          auto broker = connect_to_part(part);
          check(*broker);
          member = hold(std::move(broker), host, wish, part.gpus, wish.wait);
        } catch (const DialError& failure) {
          error = failure;
        } catch (const std::exception& failure) {
          error = DialError(CUDA_ERROR_SYSTEM_NOT_READY, address_text(host) + ": " + failure.what());
        }
        if (error && placed) error = placed_there(host, *error, part.name);
      } catch (const std::exception&) {  // no memory, not even to say so
      }
      const std::lock_guard lock(answers->mutex);
      answers->members[i] = std::move(member);
      answers->errors[i] = std::move(error);
      if (--answers->missing == 0) answers->changed.notify_all();
    });
  }
  std::unique_lock lock(answers->mutex);
  answers->changed.wait(lock, [&] { return answers->missing == 0; });
  std::vector<GangMember> members;
  std::vector<DialError> errors;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (auto& member = answers->members[i]) members.push_back(std::move(*member));
    else if (const auto& error = answers->errors[i]) errors.push_back(*error);
    else throw std::bad_alloc();
  }
  return {std::move(members), std::move(errors)};
}

LeaseOptions::Job new_job() {
  LeaseOptions::Job job;
  std::random_device random;
  for (std::byte& byte : job) byte = static_cast<std::byte>(random());
  return job;
}

// The leases that a registry has placed: all of them, or none.
std::vector<GangMember> take_of_pool(PoolContacts::Contact contact, LeaseOptions& wish, const Check& check,
                                     Clock::time_point until) {
  std::optional<DialError> in_vain;
  std::vector<std::string> unreached;
  for (int placements = 1;; ++placements) {
    check(*contact.broker);
    LeaseOptions asked = wish;
    asked.follows = true;
    asked.unreached = unreached;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (wish.wait.count() > 0) asked.wait = std::max(left, least_wait);
    GangMember member{contact.host, wish.gpus, std::move(contact.broker), {}};
    std::optional<Placement> placement;
    try {
      member.broker->ask_for_lease(asked, /*hold=*/true,
                                   [&](wire::LeaseAnswer::Reader answer) {
                                     placement = read_placement(answer, *member.broker, asked);
                                     if (!placement) take_facts(member, answer);
                                   },
                                   {});
    } catch (const DialError& error) {
      const DialError last = no_other_host(in_vain, error);
      if (last.unreached.empty()) throw told_with(in_vain, told_of_outage(contact.host, wish, error));
      if (Clock::now() + back_max >= until) throw last;
      std::this_thread::sleep_for(back_max);
      unreached.clear();
      contact.broker = std::make_unique<ControlConnection>(contact.host);
      placements = 0;
      continue;
    }
    if (!placement) {
      member.gpus = static_cast<std::uint32_t>(member.facts.devices.size());
      std::vector<GangMember> alone;
      alone.push_back(std::move(member));
      return alone;
    }
    asked.wait = std::chrono::milliseconds(0);
    asked.follows = false;
    asked.job = placement->job;
    asked.placement = placement->name;
    auto [members, errors] = join_all(placement->parts, asked, check, /*placed=*/true);
    if (errors.empty()) {
      wish.job = placement->job;
      return std::move(members);
    }
    members.clear();
    give_up(contact.host, placement->name);
    const auto silent = std::ranges::find_if(errors, [](const DialError& error) { return !error.unreached.empty(); });
    in_vain = silent == errors.end() ? errors.front() : *silent;
    if (!place_again(*in_vain, placements)) throw *in_vain;
    for (const DialError& error : errors)
      if (!error.unreached.empty()) unreached.push_back(error.unreached);
    // What was held under the old name may not have ended yet.
    wish.job = new_job();
    contact.broker = std::make_unique<ControlConnection>(contact.host);
  }
}

}  // namespace

std::vector<GangMember> take_gang(const std::vector<PoolHost>& hosts, LeaseOptions& wish, const Check& check) {
  const auto until = Clock::now() + wish.wait;
  std::minstd_rand random(std::random_device{}());
  int members_asked = 0;
  std::set<std::size_t> asked;  // places of members that could not answer
  while (true) {
    PoolContacts contacts(hosts, PoolContacts::Order::load);
    auto answered = contacts.all();
    if (answered.empty()) throw none_usable(contacts.errors());
    std::uint32_t free = 0;
    for (const auto& contact : answered) free += contact.offer.free;
    std::optional<DialError> failure;
    const auto is_member = [](const auto& contact) { return !contact.broker->pool().empty(); };
    auto member = std::ranges::find_if(
        answered, [&](const auto& contact) { return is_member(contact) && !asked.contains(contact.place); });
    if (member == answered.end()) member = std::ranges::find_if(answered, is_member);
    if (member != answered.end()) {
      asked.insert(member->place);
      try {
        return take_of_pool(std::move(*member), wish, check, until);
      } catch (const DialError& error) {  // the member that was asked may have died
        if (error.result != CUDA_ERROR_SYSTEM_NOT_READY || error.reason == wire::Failure::Reason::NO_CAPACITY ||
            !error.unreached.empty() || ++members_asked >= placements_max)
          throw;
        log::info("{}; another member of the pool is asked", error.what());
        continue;
      }
    }
    if (const std::string why = never(answered, wish, contacts.hosts()); !why.empty())
      throw DialError(CUDA_ERROR_NOT_PERMITTED, why, wire::Failure::Reason::DENIED);
    try {
      if (auto parts = plan(std::move(answered), wish); !parts.empty())
        return take(std::move(parts), wish, check, until);
      failure.emplace(
          CUDA_ERROR_SYSTEM_NOT_READY,
          fmt::format("no {} of the pool have {} free together ({} of all hosts that answer{}); ask for fewer, {}or "
                      "wait with --wait",
                      so_many(wish.hosts, "host"), wish_text(wish), so_many(free, "GPU"),
                      silent_text(contacts.errors()), wish.hosts < hosts.size() ? "allow more with --hosts, " : ""),
          wire::Failure::Reason::NO_CAPACITY);
    } catch (const DialError& error) {
      failure = error;
    }
    log::info("{}", failure->what());
    if (failure->reason != wire::Failure::Reason::NO_CAPACITY || Clock::now() >= until) throw *failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 400));
  }
}

std::vector<GangMember> join_gang(const std::vector<PoolHost>& hosts, const LeaseOptions& wish, const Check& check) {
  std::vector<Placement::Part> parts;
  for (std::size_t i = 0; i < hosts.size(); ++i) parts.push_back({hosts[i], wish.split[i], "", ""});
  auto [members, errors] = join_all(parts, wish, check, /*placed=*/false);
  if (members.empty()) throw none_usable(errors);
  for (const DialError& error : errors)
    log::warn("{}. The program goes on with the GPUs of the other hosts, which are numbered without these",
              error.what());
  return std::move(members);
}

}  // namespace fargpu::client
