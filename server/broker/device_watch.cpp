#include "device_watch.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "protocol/data.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto fresh_for = std::chrono::milliseconds(200);  // asking often costs the host little
constexpr auto good_for = std::chrono::seconds(10);
constexpr auto patience = std::chrono::seconds(2);

capnp::Data::Reader uuid_data(const std::string& uuid) { return data_of(std::as_bytes(std::span(uuid))); }

}  // namespace

struct DeviceWatch::State {
  explicit State(std::string path) : nvml(std::move(path)) {}

  HostNvml nvml;  // the thread's

  std::mutex mutex;
  std::condition_variable changed;
  asio::io_context* io = nullptr;  // null when the broker ends
  bool started = false;
  bool wanted = false;
  std::optional<Clock::time_point> asking_since;
  std::vector<std::string> uuids;

  struct Answer {
    Clock::time_point at{};
    std::vector<std::string> uuids;
    std::vector<std::vector<HostNvml::Reading>> readings;
    std::vector<std::map<unsigned, std::uint64_t>> processes;
    std::map<std::pair<unsigned, unsigned>, HostNvml::Distance> distances;
    std::vector<std::vector<HostNvml::Link>> links;
  } answer;

  std::vector<std::shared_ptr<asio::steady_timer>> waiting;  // the broker's thread's
};

DeviceWatch::DeviceWatch(asio::io_context& io, std::string path)
    : io_(io), state_(path.empty() ? nullptr : std::make_shared<State>(std::move(path))) {
  if (state_) state_->io = &io;
}

DeviceWatch::~DeviceWatch() {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->io = nullptr;
  state_->changed.notify_one();
}

void DeviceWatch::ask(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->wanted || !state->io; });
    if (!state->io) return;
    state->wanted = false;
    state->asking_since = Clock::now();
    State::Answer answer{
        .at = {}, .uuids = state->uuids, .readings = {}, .processes = {}, .distances = {}, .links = {}};
    lock.unlock();
    for (unsigned i = 0; i < answer.uuids.size(); ++i) {
      answer.readings.push_back(state->nvml.read(uuid_data(answer.uuids[i])));
      answer.processes.push_back(state->nvml.process_bytes(uuid_data(answer.uuids[i])));
      for (unsigned j = 0; j < answer.uuids.size(); ++j)
        if (auto distance = state->nvml.distance(uuid_data(answer.uuids[i]), uuid_data(answer.uuids[j])))
          answer.distances[{i, j}] = std::move(*distance);
      answer.links.push_back(state->nvml.links(uuid_data(answer.uuids[i])));
    }
    answer.at = Clock::now();
    lock.lock();
    state->asking_since.reset();
    state->answer = std::move(answer);
    if (!state->io) return;
    asio::post(*state->io, [state] {
      for (const auto& timer : state->waiting) timer->cancel();
      state->waiting.clear();
    });
  }
}

asio::awaitable<void> DeviceWatch::refresh(std::vector<std::string> uuids) {
  if (!state_ || uuids.empty()) co_return;
  std::shared_ptr<asio::steady_timer> over;
  {
    const std::lock_guard lock(state_->mutex);
    const auto now = Clock::now();
    if (state_->answer.uuids == uuids && now - state_->answer.at < fresh_for) co_return;
    state_->uuids = std::move(uuids);
    state_->wanted = true;
    if (!state_->started) std::thread([state = state_] { ask(state); }).detach();
    state_->started = true;
    state_->changed.notify_one();
    if (state_->asking_since && now - *state_->asking_since > patience) co_return;  // it hangs: waiting once was enough
    over = std::make_shared<asio::steady_timer>(io_, patience);
    state_->waiting.push_back(over);
  }
  asio::error_code cancelled;  // which means that it has answered
  co_await over->async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
}

std::vector<HostNvml::Reading> DeviceWatch::readings(std::size_t device) const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  const State::Answer& answer = state_->answer;
  return device < answer.readings.size() && Clock::now() - answer.at < good_for ? answer.readings[device]
                                                                                : std::vector<HostNvml::Reading>{};
}

std::optional<std::uint64_t> DeviceWatch::process_bytes(std::size_t device, pid_t process) const {
  if (!state_) return std::nullopt;
  const std::lock_guard lock(state_->mutex);
  const State::Answer& answer = state_->answer;
  if (device >= answer.processes.size() || Clock::now() - answer.at >= good_for) return std::nullopt;
  const auto found = answer.processes[device].find(static_cast<unsigned>(process));
  return found == answer.processes[device].end() ? std::nullopt : std::optional(found->second);
}

std::map<std::pair<unsigned, unsigned>, HostNvml::Distance> DeviceWatch::distances() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->answer.distances;
}

std::vector<HostNvml::Link> DeviceWatch::links(std::size_t device) const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  const auto& links = state_->answer.links;
  return device < links.size() ? links[device] : std::vector<HostNvml::Link>{};
}

}  // namespace fargpu::server
