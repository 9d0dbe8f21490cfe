// The rights of jobs to shares of devices.

#include "server/broker/lease.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>

#include "server/broker/settings.h"
#include "server/quota/host_budget.h"

using namespace fargpu;
using namespace fargpu::server;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

Tenants tenants_of(const std::string& text) {
  std::string name = (fs::temp_directory_path() / "fargpu-tenants-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  REQUIRE(file >= 0);
  ::close(file);
  std::ofstream(name) << text;
  struct Remove {
    std::string name;
    ~Remove() { fs::remove(name); }
  } remove{name};
  return Tenants::read(name);
}

std::string complaint(const std::string& text) {
  try {
    tenants_of(text);
  } catch (const SettingsError& error) {
    return error.what();
  }
  return "no complaint";
}

/// A host with two devices of 80 GiB.
struct Host {
  explicit Host(const std::string& tenants = "", std::vector<unsigned> sm_groups = {}) : leases(16) {
    if (!tenants.empty()) leases.set_tenants(tenants_of(tenants));
    leases.set_devices({80 * gib, 80 * gib}, std::move(sm_groups));
  }
  Leases::Answer ask(const LeaseWish& wish, const std::string& tenant = "default",
                     std::optional<JobKey> job = std::nullopt) {
    const Tenant* const found = leases.tenants().find(tenant);
    REQUIRE(found);
    return leases.grant(*found, wish, job);
  }
  std::shared_ptr<Lease> get(const LeaseWish& wish, const std::string& tenant = "default",
                             std::optional<JobKey> job = std::nullopt) {
    auto answer = ask(wish, tenant, job);
    if (auto* const refusal = std::get_if<LeaseRefusal>(&answer)) FAIL(refusal->text);
    return std::get<std::shared_ptr<Lease>>(answer);
  }
  LeaseRefusal refusal(const LeaseWish& wish, const std::string& tenant = "default") {
    auto answer = ask(wish, tenant);
    REQUIRE(std::holds_alternative<LeaseRefusal>(answer));
    return std::get<LeaseRefusal>(answer);
  }
  std::unique_ptr<LeaseSession> session(const std::shared_ptr<Lease>& lease) {
    auto begun = leases.begin_session(lease);
    REQUIRE(std::holds_alternative<std::unique_ptr<LeaseSession>>(begun));
    return std::get<std::unique_ptr<LeaseSession>>(std::move(begun));
  }
  Leases leases;
};

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("leases: a job that asks for nothing in particular gets every device, as often as it likes") {
  Host host;
  const auto one = host.get({}), other = host.get({});
  CHECK(one->devices == std::vector<unsigned>{0, 1});
  CHECK(one->memory_bytes == 0);
  CHECK(one->id != other->id);
  CHECK(host.leases.all().size() == 2);
}

TEST_CASE("leases: memory that is kept for one is not given to another, until the lease ends") {
  Host host;
  auto first = host.get({.gpus = 2, .memory_bytes = 50 * gib});
  CHECK(host.leases.free_bytes(0) == 30 * gib);
  const LeaseRefusal refused = host.refusal({.gpus = 1, .memory_bytes = 31 * gib});
  CHECK(refused.may_change);
  CHECK(mentions(refused.text, "GPU 0 has 30.0 GiB and 100%, GPU 1 has 30.0 GiB and 100%"));
  CHECK(mentions(refused.text, "31.0 GiB on 1 GPU is asked for"));
  CHECK(mentions(host.refusal({.gpus = 2, .memory_bytes = 31 * gib}).text, "31.0 GiB on each of 2 GPUs is asked for"));
  CHECK(host.get({.gpus = 1, .memory_bytes = 30 * gib})->devices == std::vector<unsigned>{0});
  first.reset();
  CHECK(host.leases.free_bytes(0) == 80 * gib);
  CHECK(host.get({.gpus = 2, .memory_bytes = 80 * gib}));
}

TEST_CASE("leases: devices with the most free memory, told in the host's order") {
  Host host;
  const auto first = host.get({.gpus = 1, .memory_bytes = 10 * gib});
  CHECK(first->devices == std::vector<unsigned>{0});
  const auto second = host.get({.gpus = 1, .memory_bytes = 20 * gib});
  CHECK(second->devices == std::vector<unsigned>{1});
  const auto third = host.get({.gpus = 1, .memory_bytes = 5 * gib});
  CHECK(third->devices == std::vector<unsigned>{0});
  CHECK(host.get({.gpus = 2, .memory_bytes = gib})->devices == std::vector<unsigned>{0, 1});
}

TEST_CASE("leases: what sessions hold without its being kept for them is not free either") {
  Host host;
  const auto lease = host.get({});
  const auto session = host.session(lease);
  lease->account->slot(session->slot()).charged[1] = 60 * gib;
  CHECK(host.leases.free_bytes(0) == 80 * gib);
  CHECK(host.leases.free_bytes(1) == 20 * gib);
  CHECK(host.refusal({.gpus = 2, .memory_bytes = 30 * gib}).may_change);
  CHECK(host.get({.gpus = 1, .memory_bytes = 30 * gib})->devices == std::vector<unsigned>{0});
}

TEST_CASE("leases: a worker that writes nonsense into its tenant's account makes the tenant no richer") {
  Host host("[tenant.lab]\nmemory = \"40GiB\"\n[tenant.other]\n");
  const auto lease = host.get({}, "lab");
  const auto session = host.session(lease);
  for (auto& bytes : lease->account->slot(session->slot()).charged) bytes = ~std::uint64_t{0} / 2 + 1;
  CHECK(host.refusal({.gpus = 1, .memory_bytes = gib}, "lab").may_change);
  CHECK(host.get({.gpus = 2}, "other"));
}

TEST_CASE("leases: compute is divided too") {
  Host host;
  const auto most = host.get({.gpus = 2, .compute_percent = 70});
  CHECK(host.refusal({.gpus = 1, .compute_percent = 40}).may_change);
  CHECK(host.get({.gpus = 1, .compute_percent = 30}));
  CHECK(host.get({}));  // without a share of its own it takes nothing from leases that have one
  CHECK_FALSE(host.refusal({.compute_percent = 101}).may_change);
}

TEST_CASE("leases: under sm_partitions a percentage is of multiprocessors of its own") {
  Host host(
      "[tenant.lab]\nmps = \"/run/mps-lab\"\nsm_partitions = true\n[tenant.same]\nmps = "
      "\"/run/mps-lab\"\nsm_partitions = true\n"
      "[tenant.other]\nmps = \"/run/mps-other\"\nsm_partitions = true\n[tenant.mps]\nmps = \"/run/mps-lab\"\n",
      {15, 4});
  using Groups = std::vector<unsigned>;
  auto one = host.get({.gpus = 2, .compute_percent = 25}, "lab");
  CHECK(one->sm_groups == SmGroups{Groups{0, 1, 2}, Groups{0}});  // whole groups of each
  const auto two = host.get({.gpus = 1, .memory_bytes = gib, .compute_percent = 40}, "lab");
  CHECK(two->devices == Groups{0});
  CHECK(two->sm_groups == SmGroups{Groups{3, 4, 5, 6, 7, 8}});
  SECTION("given back with the lease") {
    one.reset();
    CHECK(host.get({.gpus = 2, .compute_percent = 34}, "lab")->sm_groups ==
          SmGroups{Groups{0, 1, 2, 9, 10}, Groups{0}});
  }
  SECTION("disjoint from those of whoever goes by the same daemon, and of nobody else") {
    CHECK(host.get({.gpus = 2, .compute_percent = 10}, "same")->sm_groups == SmGroups{Groups{9}, Groups{1}});
    CHECK(host.get({.gpus = 2, .compute_percent = 10}, "other")->sm_groups == SmGroups{Groups{0}, Groups{0}});
    CHECK(host.get({.gpus = 2, .compute_percent = 10}, "mps")->sm_groups.empty());
    CHECK(host.get({.gpus = 2}, "mps")->sm_groups.empty());
  }
  SECTION("never less than one, so that they can be lacking before the percentage is") {
    std::vector<std::shared_ptr<Lease>> small;
    for (int i = 0; i < 3; ++i) small.push_back(host.get({.gpus = 2, .compute_percent = 1}, "lab"));
    CHECK(small.back()->sm_groups == SmGroups{Groups{11}, Groups{3}});
    const LeaseRefusal refused = host.refusal({.gpus = 2, .compute_percent = 1}, "lab");
    CHECK(refused.may_change);
    CHECK(refused.shortage == Shortage::devices);
    CHECK(mentions(refused.text,
                   "GPU 0 has 79.0 GiB and 32% and 3 of 15 groups of 8 multiprocessors, GPU 1 has 80.0 GiB and 72% and "
                   "0 of 4 groups of 8"));
    CHECK(host.get({.gpus = 1, .compute_percent = 1}, "lab")->devices == Groups{0});
    small.pop_back();
    CHECK(host.get({.gpus = 2, .compute_percent = 1}, "lab")->sm_groups == SmGroups{Groups{11}, Groups{3}});
  }
  SECTION("without a percentage there are none") {
    const LeaseRefusal refused = host.refusal({.gpus = 1}, "lab");
    CHECK_FALSE(refused.may_change);
    CHECK(mentions(refused.text, "ask for one, by -c or FARGPU_COMPUTE"));
  }
  SECTION("a driver that makes none") {
    host.leases.set_devices({80 * gib, 80 * gib}, {15});
    const LeaseRefusal refused = host.refusal({.gpus = 1, .compute_percent = 1}, "lab");
    CHECK_FALSE(refused.may_change);
    CHECK(mentions(refused.text, "multiprocessors of GPU 1 cannot be divided"));
  }
}

TEST_CASE("leases: of a tenant's compute a lease takes what its groups of multiprocessors are") {
  Host host(
      "[tenant.lab]\nmps = \"/run/mps\"\nsm_partitions = true\ncompute = \"20%\"\ndevices = [0]\n"
      "[tenant.other]\nmps = \"/run//mps/\"\nsm_partitions = true\ndevices = [0]\n"
      "[tenant.few]\nmps = \"/run/mps-few\"\nsm_partitions = true\ncompute = \"6%\"\ndevices = [0]\n",
      {15, 15});
  std::vector<std::shared_ptr<Lease>> small;
  for (int i = 0; i < 3; ++i) small.push_back(host.get({.gpus = 1, .compute_percent = 1}, "lab"));
  const LeaseRefusal refused = host.refusal({.gpus = 1, .compute_percent = 1}, "lab");
  CHECK(refused.may_change);
  CHECK(refused.shortage == Shortage::quota);
  CHECK(mentions(refused.text, "tenant 'lab' holds 20% of its 20% of compute, and 7% more is asked for"));
  // Which leaves the others of the same daemon theirs, by whatever name they call it.
  CHECK(host.get({.gpus = 1, .compute_percent = 80}, "other")->sm_groups ==
        SmGroups{{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}});
  small.pop_back();
  small.push_back(host.get({.gpus = 1, .compute_percent = 6}, "lab"));
  const LeaseRefusal never = host.refusal({.gpus = 1, .compute_percent = 1}, "few");
  CHECK_FALSE(never.may_change);
  CHECK(mentions(never.text, "7% of compute is asked for with a group of multiprocessors, the least there is"));
}

TEST_CASE("leases: what can never be is refused for good") {
  Host host;
  for (const LeaseWish& wish : {LeaseWish{.gpus = 3}, LeaseWish{.gpus = 1, .memory_bytes = 81 * gib},
                                LeaseWish{.memory_bytes = ~std::uint64_t{0}},
                                LeaseWish{.gpus = ~0u, .memory_bytes = ~std::uint64_t{0}, .compute_percent = 100}})
    CHECK_FALSE(host.refusal(wish).may_change);
}

TEST_CASE("leases: all processes of a job have one, and other tenants' jobs of the same name another") {
  Host host("[tenant.a]\n[tenant.b]\n");
  const JobKey job{std::byte{7}};
  auto lease = host.get({.gpus = 1, .memory_bytes = 60 * gib}, "a", job);
  CHECK(host.get({.gpus = 1, .memory_bytes = 60 * gib}, "a", job) == lease);
  CHECK(host.get({}, "a", job) == lease);
  CHECK(host.get({}, "b", job) != lease);
  CHECK(host.leases.find("a", job) == lease);
  CHECK(host.leases.find("b", job) == nullptr);
  const std::uint64_t before = lease->id;
  lease.reset();
  CHECK(host.get({}, "a", job)->id != before);
}

TEST_CASE("leases: a tenant's quotas") {
  Host host("[tenant.lab]\nmemory = \"40GiB\"\ncompute = \"150%\"\nsessions = 2\ndevices = [1]\nweight = 7\n");
  SECTION("devices") {
    CHECK(host.get({}, "lab")->devices == std::vector<unsigned>{1});
    CHECK(host.get({}, "lab")->weight == 7);
    CHECK(mentions(host.refusal({.gpus = 2}, "lab").text, "this host has 1 for tenant 'lab'"));
  }
  SECTION("memory") {
    CHECK_FALSE(host.refusal({.gpus = 1, .memory_bytes = 41 * gib}, "lab").may_change);
    auto first = host.get({.gpus = 1, .memory_bytes = 30 * gib}, "lab");
    const LeaseRefusal refused = host.refusal({.gpus = 1, .memory_bytes = 11 * gib}, "lab");
    CHECK(refused.may_change);
    CHECK(mentions(refused.text, "tenant 'lab' holds 30.0 GiB of its 40.0 GiB"));
    const auto second = host.get({.gpus = 1, .memory_bytes = 10 * gib}, "lab");
    CHECK(first->account->unreserved_max() == 0);
    first.reset();
    CHECK(second->account->unreserved_max() == 30 * gib);
  }
  SECTION("compute") {
    const auto first = host.get({.gpus = 1, .compute_percent = 100}, "lab");
    CHECK(host.refusal({.gpus = 1, .compute_percent = 60}, "lab").may_change);
  }
  SECTION("sessions") {
    const auto lease = host.get({}, "lab");
    auto one = host.session(lease), two = host.session(lease);
    CHECK(std::holds_alternative<LeaseRefusal>(host.leases.begin_session(lease)));
    two.reset();
    CHECK(host.session(lease));
  }
}

TEST_CASE("leases: priority is what a tenant may ask for at most") {
  Host host("[tenant.low]\npriority = \"best-effort\"\n[tenant.mid]\n[tenant.high]\npriority = \"latency-critical\"\n");
  CHECK(host.get({.priority = wire::Priority::BEST_EFFORT}, "low"));
  CHECK_FALSE(host.refusal({.priority = wire::Priority::NORMAL}, "low").may_change);
  CHECK_FALSE(host.refusal({.priority = wire::Priority::LATENCY_CRITICAL}, "mid").may_change);
  // Without a wish it is the highest that the tenant may have, and at most normal.
  CHECK(host.get({}, "low")->priority == wire::Priority::BEST_EFFORT);
  CHECK(host.get({}, "mid")->priority == wire::Priority::NORMAL);
  CHECK(host.get({}, "high")->priority == wire::Priority::NORMAL);
  CHECK(host.get({.priority = wire::Priority::LATENCY_CRITICAL}, "high"));
}

TEST_CASE("leases: whoever waits hears of every end and of new quotas") {
  Host host;
  int heard = 0;
  auto lease = host.get({});
  auto session = host.session(lease);
  auto watch = host.leases.watch([&] { ++heard; });
  session.reset();
  CHECK(heard == 1);
  lease.reset();
  CHECK(heard == 2);
  host.leases.set_tenants(tenants_of("[tenant.default]\nmemory = \"1GiB\"\n"));
  CHECK(heard == 3);
  watch.reset();
  host.get({}).reset();
  CHECK(heard == 3);
}

TEST_CASE("leases: new quotas hold for what is asked from now on, and take nothing away") {
  Host host;
  const auto lease = host.get({.gpus = 2, .memory_bytes = 60 * gib});
  host.leases.set_tenants(tenants_of("[tenant.default]\nmemory = \"100GiB\"\nweight = 5\n"));
  CHECK(lease->memory_bytes == 60 * gib);
  CHECK(lease->weight == 5);
  CHECK(host.refusal({.gpus = 1, .memory_bytes = gib}).may_change);
}

TEST_CASE("leases: only so many") {
  Leases leases(2);
  leases.set_devices({gib});
  const Tenant& tenant = *leases.tenants().find("default");
  const auto one = leases.grant(tenant, {}, std::nullopt), two = leases.grant(tenant, {}, std::nullopt);
  CHECK(std::holds_alternative<LeaseRefusal>(leases.grant(tenant, {}, std::nullopt)));
}

TEST_CASE("tenants: without any in the file there is one, who may do everything") {
  CHECK_FALSE(tenants_of("sessions_max = 5\n").configured());
  const Tenants tenants = Tenants::read("");
  REQUIRE(tenants.find("default"));
  CHECK(tenants.find("default")->memory_bytes == 0);
  CHECK(tenants.find("default")->priority == wire::Priority::LATENCY_CRITICAL);
  CHECK_FALSE(tenants.find("other"));
}

TEST_CASE("tenants: everything that can be said of one") {
  const Tenants tenants = tenants_of(
      "[tenant.lab]\nmemory = \"40GiB\"\ncompute = 150\nweight = 3\nsessions = 9\ndevices = [1, 0, 1]\n"
      "priority = \"best-effort\"\ncertificates = [\"node1\"]\nusers = [1000]\n[tenant.other]\n");
  CHECK(tenants.configured());
  const Tenant* const lab = tenants.find("lab");
  REQUIRE(lab);
  CHECK(lab->memory_bytes == 40 * gib);
  CHECK(lab->compute_percent == 150);
  CHECK(lab->weight == 3);
  CHECK(lab->sessions_max == 9);
  CHECK(lab->devices == std::vector<unsigned>{0, 1});
  CHECK(lab->priority == wire::Priority::BEST_EFFORT);
  CHECK(tenants.of_certificate("node1") == lab);
  CHECK(tenants.of_certificate("other") == tenants.find("other"));
  CHECK(tenants.of_certificate("nobody") == nullptr);
  CHECK(tenants.of_user(1000) == lab);
  CHECK(tenants.of_user(1001) == nullptr);
  CHECK_FALSE(tenants.find("default"));
}

TEST_CASE("tenants: what is wrong is named") {
  CHECK(
      mentions(complaint("[tenant.lab]\nmemory = \"1\"\n"), "with its unit: this is 1 byte, which is less than 1 MiB"));
  CHECK(mentions(complaint("[tenant.lab]\nmemory = \"40\"\n"), "with its unit: this is 40 bytes, which"));
  CHECK(mentions(complaint("[tenant.lab]\nmemory = \"lots\"\n"),
                 "(line 2): memory of tenant 'lab' is the text \"lots\"; give an amount"));
  CHECK(mentions(complaint("[tenant.lab]\nmemroy = \"1GiB\"\n"), "tenant 'lab' has no setting 'memroy'"));
  CHECK(mentions(complaint("[tenant.lab]\nweight = 0\n"), "from 1 to 10000"));
  CHECK(mentions(complaint("[tenant.lab]\nsessions = \"two\"\n"),
                 "sessions of tenant 'lab' is the text \"two\"; give a whole number from 1 to"));
  CHECK(mentions(complaint("[tenant.lab]\ndevices = [64]\n"),
                 "devices of tenant 'lab' holds the number 64; give a list of whole numbers from 0 to 63"));
  CHECK(mentions(complaint("[tenant.lab]\ndevices = []\n"),
                 "devices of tenant 'lab' is a list; give at least one device"));
  CHECK(mentions(complaint("[tenant.lab]\ndevices = 0\n"), "devices of tenant 'lab' is the number 0; give a list"));
  CHECK(mentions(complaint("[tenant.lab]\nusers = [\"root\"]\n"),
                 "users of tenant 'lab' holds the text \"root\"; give a list of whole numbers"));
  CHECK(mentions(complaint("[tenant.lab]\ncertificates = [1]\n"),
                 "certificates of tenant 'lab' holds the number 1; give a list of texts"));
  CHECK(mentions(complaint("[tenant.lab]\nmemory = 1.5\n"),
                 "memory of tenant 'lab' is the number 1.5, with a fraction; give an amount"));
  CHECK(mentions(complaint("[tenant]\nlab = 7\n"), "(line 2): tenant.lab is the number 7; write tables"));
  CHECK(mentions(complaint("[tenant.lab]\npriority = \"high\"\n"), "best-effort, normal or latency-critical"));
  CHECK(mentions(complaint("[tenant.\"../x\"]\n"), "cannot be a tenant's name"));
  CHECK(mentions(complaint("tenant = 5\n"), "(line 1): tenant is the number 5; write tables [tenant.NAME]"));
  CHECK(mentions(complaint("[tenant.a]\ncertificates = [\"x\"]\n[tenant.b]\ncertificates = [\"x\"]\n"),
                 "certificate 'x' is of two tenants"));
  CHECK(mentions(complaint("[tenant.lab\n"), "line 1"));
  CHECK(mentions(complaint("[tenant.lab]\nsm_partitions = true\n"),
                 "(line 2): sm_partitions of tenant 'lab' is true; give its `mps` too"));
  CHECK(mentions(complaint("[tenant.lab]\nmps = \"/run/mps\"\nsm_partitions = 1\n"),
                 "sm_partitions of tenant 'lab' is the number 1; give true or false"));
}

// --- the queue ------------------------------------------------------------------------------------------------------

namespace {

/// A job that was refused and waits.
struct Waiting {
  Waiting(Host& host, const LeaseWish& wish, const std::string& tenant = "default")
      : host(host), wish(wish), tenant(tenant) {
    REQUIRE_FALSE(try_again());
  }
  /// Whether it has its lease now.
  bool try_again() {
    const Tenant* const found = host.leases.tenants().find(tenant);
    REQUIRE(found);
    auto answer = host.leases.grant(*found, wish, std::nullopt, place.get());
    if (auto* const refusal = std::get_if<LeaseRefusal>(&answer)) {
      REQUIRE(refusal->may_change);
      if (!place) place = host.leases.wait(*found, wish);
      place->shortage = refusal->shortage;
      return false;
    }
    lease = std::get<std::shared_ptr<Lease>>(answer);
    place.reset();
    return true;
  }
  Host& host;
  LeaseWish wish;
  std::string tenant;
  std::shared_ptr<Waiter> place;
  std::shared_ptr<Lease> lease;
};

}  // namespace

TEST_CASE("leases: small ones that come later do not overtake a large one that waits") {
  Host host;
  std::vector<std::shared_ptr<Lease>> small;
  for (int i = 0; i < 14; ++i) small.push_back(host.get({.gpus = 1, .memory_bytes = 10 * gib}));
  Waiting large(host, {.gpus = 1, .memory_bytes = 60 * gib});
  // Each that ends would make room for another small one, for ever.
  for (int round = 0; round < 16 && !large.lease; ++round) {
    small.erase(small.begin());
    const auto late = host.ask({.gpus = 1, .memory_bytes = 10 * gib});
    if (auto* const lease = std::get_if<std::shared_ptr<Lease>>(&late)) small.push_back(*lease);
    large.try_again();
  }
  REQUIRE(large.lease);
  CHECK(large.lease->memory_bytes == 60 * gib);
}

TEST_CASE("leases: who can do with what the one who waits does not need has it at once") {
  Host host;
  const auto first = host.get({.gpus = 1, .memory_bytes = 50 * gib});   // of the first device
  const auto second = host.get({.gpus = 1, .memory_bytes = 20 * gib});  // of the second
  Waiting large(host, {.gpus = 1, .memory_bytes = 70 * gib});
  CHECK(large.place->shortage == Shortage::devices);
  // The second device is where it waits; the other has room that it does not want.
  CHECK(host.get({.gpus = 1, .memory_bytes = 30 * gib})->devices == std::vector<unsigned>{0});
  const LeaseRefusal refused = host.refusal({.gpus = 1, .memory_bytes = 31 * gib});
  CHECK(refused.may_change);
  CHECK(mentions(refused.text, "less what is kept for those that wait already"));
  // Beside one that wants two devices of which one has more than it wants.
  large.place.reset();
  Waiting both(host, {.gpus = 2, .memory_bytes = 40 * gib});
  CHECK(host.get({.gpus = 1, .memory_bytes = 20 * gib})->devices == std::vector<unsigned>{1});
  CHECK_FALSE(std::holds_alternative<std::shared_ptr<Lease>>(host.ask({.gpus = 1, .memory_bytes = 21 * gib})));
}

TEST_CASE("leases: one that goes again before anybody could miss what it had wakes nobody") {
  Host host;
  int told = 0;
  const auto watch = host.leases.watch([&] { ++told; });
  for (const bool passing : {true, false}) {
    auto lease = host.get({.gpus = 1, .memory_bytes = gib});
    lease->passing = passing;
    lease.reset();
    CHECK(told == (passing ? 0 : 1));
    CHECK(host.leases.all().empty());
  }
}

TEST_CASE("leases: workers of a tenant keep no more from others than it may hold, however many leases they have") {
  Host host("[tenant.a]\nmemory = \"10GiB\"\n[tenant.b]\n");
  std::vector<std::shared_ptr<Lease>> leases;
  std::vector<std::unique_ptr<LeaseSession>> sessions;
  for (int i = 0; i < 5; ++i) {
    leases.push_back(host.get({}, "a"));
    sessions.push_back(host.session(leases.back()));
    for (auto& bytes : leases.back()->account->slot(sessions.back()->slot()).charged) bytes = ~std::uint64_t{0} / 2 + 1;
  }
  CHECK(host.leases.free_bytes(0) == 70 * gib);
  CHECK(host.get({.gpus = 2, .memory_bytes = 70 * gib}, "b"));
}

TEST_CASE("leases: a place in the queue goes with who had it") {
  Host host;
  const auto first = host.get({.gpus = 2, .memory_bytes = 50 * gib});
  auto large = std::make_unique<Waiting>(host, LeaseWish{.gpus = 2, .memory_bytes = 80 * gib});
  int told = 0;
  const auto watch = host.leases.watch([&] { ++told; });
  CHECK_FALSE(host.refusal({.gpus = 1, .memory_bytes = gib}).text.empty());
  large.reset();
  CHECK(told == 1);
  CHECK(host.get({.gpus = 1, .memory_bytes = gib}));
}

TEST_CASE("leases: compute that is waited for is kept too") {
  Host host;
  const auto first = host.get({.gpus = 2, .compute_percent = 60});
  Waiting large(host, {.gpus = 2, .compute_percent = 50});
  CHECK_FALSE(std::holds_alternative<std::shared_ptr<Lease>>(host.ask({.gpus = 1, .compute_percent = 40})));
  CHECK(host.get({.gpus = 1, .memory_bytes = 10 * gib}));
}

TEST_CASE("leases: who waits for its own quota keeps nobody else from a device") {
  Host host("[tenant.a]\nmemory = \"40GiB\"\n[tenant.b]\n");
  const auto held = host.get({.gpus = 1, .memory_bytes = 30 * gib}, "a");
  Waiting more(host, {.gpus = 1, .memory_bytes = 20 * gib}, "a");
  CHECK(more.place->shortage == Shortage::quota);
  CHECK(host.get({.gpus = 1, .memory_bytes = 80 * gib}, "b"));
  // But one of its own tenant, which would have to wait longer for it.
  CHECK(host.refusal({.gpus = 1, .memory_bytes = 5 * gib}, "a").shortage == Shortage::quota);
}

TEST_CASE("leases: a tenant that asks for much at once does not fill the queue for the others") {
  Host host("[tenant.a]\n[tenant.b]\n");
  auto all = host.get({.gpus = 2, .memory_bytes = 80 * gib}, "a");
  std::list<Waiting> greedy;
  for (int i = 0; i < 10; ++i) greedy.emplace_back(host, LeaseWish{.gpus = 2, .memory_bytes = 80 * gib}, "a");
  Waiting other(host, {.gpus = 1, .memory_bytes = 10 * gib}, "b");
  all.reset();
  CHECK_FALSE(other.try_again());  // the first of each comes in the order in which they came
  REQUIRE(greedy.front().try_again());
  greedy.pop_front();  // done
  CHECK_FALSE(std::next(greedy.begin())->try_again());
  // Now the first of `a` is one that came before `other`, and its second one that does not count before it.
  REQUIRE(greedy.front().try_again());
  greedy.front().lease.reset();
  greedy.pop_front();
  greedy.pop_front();
  CHECK(greedy.size() == 7);
}

TEST_CASE("leases: sessions of a tenant go to who has waited for one") {
  Host host("[tenant.a]\nsessions = 1\n");
  const auto lease = host.get({}, "a");
  auto running = host.session(lease);
  const Tenant& tenant = *host.leases.tenants().find("a");
  const auto place = host.leases.wait(tenant, {});
  place->shortage = Shortage::tenant_sessions;
  running.reset();
  CHECK(std::holds_alternative<LeaseRefusal>(host.leases.begin_session(lease)));
  CHECK(std::holds_alternative<std::unique_ptr<LeaseSession>>(host.leases.begin_session(lease, place.get())));
}

TEST_CASE("tenants: memory of the host, kernels, administrators and users") {
  const Tenants tenants = tenants_of(
      "[tenant.a]\nhost_memory = \"2GiB\"\nkernel_seconds_max = 7\nadministrator = true\nusers = [1000]\n[tenant.b]\n");
  CHECK(tenants.find("a")->host_bytes == 2 * gib);
  CHECK(tenants.find("a")->kernel_seconds_max == 7u);
  CHECK(tenants.find("a")->administrator);
  CHECK(tenants.of_user(1000) == tenants.find("a"));
  CHECK(tenants.find("b")->host_bytes == 0);
  CHECK_FALSE(tenants.find("b")->kernel_seconds_max);
  CHECK_FALSE(tenants.find("b")->administrator);
  CHECK(tenants.of_user(1001) == nullptr);
  CHECK(mentions(complaint("[tenant.a]\nusers = [1]\n[tenant.b]\nusers = [1]\n"), "user 1 is of two tenants"));
  CHECK(mentions(complaint("[tenant.a]\nhost_memory = \"much\"\n"),
                 "host_memory of tenant 'a' is the text \"much\"; give"));
  CHECK(mentions(complaint("[tenant.a]\nadministrator = 1\n"), "administrator of tenant 'a' is the number 1; give"));
}

TEST_CASE("leases: all sessions of a lease have the tenant's bound of host memory together") {
  Host host("[tenant.a]\nhost_memory = \"2GiB\"\n");
  const auto lease = host.get({}, "a"), other = host.get({}, "a");
  CHECK(lease->account->host_max() == 2 * gib);
  const auto one = host.session(lease), two = host.session(lease), third = host.session(other);
  HostBudget first(0, AccountPlace{lease->account, one->slot()});
  HostBudget::Bound refused = HostBudget::Bound::session;
  HostBudget second(0, AccountPlace{lease->account, two->slot()}, [&](HostBudget::Bound bound) { refused = bound; });
  HostBudget elsewhere(0, AccountPlace{other->account, third->slot()});
  CHECK(first.charge(gib));
  CHECK(second.charge(gib));
  CHECK_FALSE(second.charge(1));
  CHECK(refused == HostBudget::Bound::lease);
  CHECK(elsewhere.charge(2 * gib));
  first.credit(gib);
  CHECK(second.charge(gib));
  CHECK(lease->account->held_of_host(lease->id) == 2 * gib);
  host.leases.set_tenants(tenants_of("[tenant.a]\nhost_memory = \"3GiB\"\n"));
  CHECK(first.charge(gib));
  CHECK_FALSE(first.charge(1));
}

TEST_CASE("leases: groups of multiprocessors are kept for who waits for them") {
  Host host("[tenant.lab]\nmps = \"/run/mps-lab\"\nsm_partitions = true\ndevices = [0]\n", {4, 4});
  std::vector<std::shared_ptr<Lease>> small;
  for (int i = 0; i < 4; ++i) small.push_back(host.get({.compute_percent = 1}, "lab"));
  Waiting large(host, {.compute_percent = 50}, "lab");
  small.pop_back();
  CHECK_FALSE(large.try_again());
  CHECK(mentions(host.refusal({.compute_percent = 1}, "lab").text, "less what is kept for those that wait already"));
  small.pop_back();
  REQUIRE(large.try_again());
  CHECK(large.lease->sm_groups == SmGroups{{2, 3}});
}

TEST_CASE("leases: sessions of an earlier broker come with theirs") {
  Host before("[tenant.lab]\nmemory = \"64GiB\"\n");
  const auto granted = before.get({.gpus = 1, .memory_bytes = 40 * gib}, "lab");
  auto begun = std::get<std::unique_ptr<LeaseSession>>(before.leases.begin_session(granted));
  const std::size_t slot = begun->slot();

  Host next("[tenant.lab]\nmemory = \"64GiB\"\nweight = 300\n");
  const auto account = std::make_shared<TenantAccount>(TenantAccount::open(::dup(granted->account->descriptor())));
  std::string why_not;
  const auto facts = [&](std::uint64_t id = 0) {
    Lease lease = *granted;
    if (id != 0) lease.id = id;
    lease.account = nullptr;
    lease.sessions = 0;
    return lease;
  };
  auto session = next.leases.take_over(facts(), account, slot, why_not);
  REQUIRE(session);
  next.leases.all_taken_over(/*all=*/true);
  CHECK(session->lease().id == granted->id);
  CHECK(session->lease().weight == 300);
  CHECK(next.leases.free_bytes(granted->devices[0]) == 40 * gib);
  CHECK(next.leases.use_of("lab").memory_bytes == 40 * gib);
  CHECK(next.leases.use_of("lab").sessions == 1);
  CHECK(std::holds_alternative<LeaseRefusal>(next.ask({.gpus = 1, .memory_bytes = 30 * gib}, "lab")));
  CHECK(next.get({.gpus = 1, .memory_bytes = 20 * gib}, "lab")->id > granted->id);

  // Others that would be of the same.
  CHECK_FALSE(next.leases.take_over(facts(), std::make_shared<TenantAccount>(16), slot, why_not));
  CHECK(why_not == "its tenant's other sessions have another account");
  CHECK_FALSE(next.leases.take_over(facts(), account, 16, why_not));
  CHECK(why_not == "its place in the tenant's account is another's");
  Lease other = facts();
  other.devices = {1 - granted->devices[0]};
  CHECK_FALSE(next.leases.take_over(std::move(other), account, slot + 1, why_not));
  CHECK(why_not == "there is another lease " + std::to_string(granted->id));

  session.reset();
  CHECK(next.leases.use_of("lab").sessions == 0);
  CHECK(next.leases.free_bytes(granted->devices[0]) >= 60 * gib);
}
