// What fargpud is told, and what counts more.

#include "server/broker/settings.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/temporary_folder.h"

using namespace fargpu::server;
namespace fs = std::filesystem;

namespace {

/// A settings file, an environment and a command line, for the life of one reading.
struct Told {
  ~Told() {
    for (const std::string& variable : variables) ::unsetenv(variable.c_str());
  }
  Told& in_file(const std::string& text) {
    std::ofstream(file) << text;
    with_file = true;
    return *this;
  }
  Told& in_environment(const std::string& variable, const std::string& value) {
    ::setenv(variable.c_str(), value.c_str(), 1);
    variables.push_back(variable);
    return *this;
  }
  Settings read(std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), "fargpud");
    if (with_file) {
      flags.push_back("--config");
      flags.push_back(file.string());
    }
    std::vector<char*> words;
    for (std::string& flag : flags) words.push_back(flag.data());
    Settings settings;
    wish = read_settings(static_cast<int>(words.size()), words.data(), settings, exit_code);
    return settings;
  }
  std::string complaint(const std::vector<std::string>& flags = {}) {
    try {
      read(flags);
    } catch (const SettingsError& error) {
      return error.what();
    }
    return "no complaint";
  }

  fargpu::test::TemporaryFolder own;
  const fs::path& folder = own.path;
  fs::path file = folder / "settings.toml";
  std::vector<std::string> variables;
  bool with_file = false;
  Command wish = Command::done;
  int exit_code = -1;
};

std::string origin(const Settings& settings, const std::string& name) {
  for (const Settings::Origin& origin : settings.origins)
    if (origin.name == name) return origin.from;
  return "";
}

}  // namespace

TEST_CASE("what nobody says is at its default") {
  Told told;
  const Settings settings = told.read();
  CHECK(told.wish == Command::serve);
  CHECK(settings.listen == "127.0.0.1:8470");
  CHECK_FALSE(settings.insecure);
  CHECK(settings.warm_context);
  CHECK(settings.sessions_max == 256);
  CHECK(settings.log_format == "text");
  CHECK(origin(settings, "listen") == "default");
}

TEST_CASE("flags count more than variables, variables more than the file, the file more than defaults") {
  Told told;
  told.in_file("listen = '127.0.0.1:1'\nsessions_max = 11\nspin_us = 21\nwarm_workers = 31\n")
      .in_environment("FARGPUD_LISTEN", "127.0.0.1:2")
      .in_environment("FARGPUD_SESSIONS_MAX", "12")
      .in_environment("FARGPUD_DRAIN_SECONDS", "42");
  const Settings settings = told.read({"--listen", "127.0.0.1:3", "--warm-workers=33"});
  CHECK(settings.listen == "127.0.0.1:3");
  CHECK(origin(settings, "listen") == "flag --listen");
  CHECK(settings.sessions_max == 12);
  CHECK(origin(settings, "sessions_max") == "environment variable FARGPUD_SESSIONS_MAX");
  CHECK(settings.spin_us == 21);
  CHECK(origin(settings, "spin_us") == "file " + told.file.string());
  CHECK(settings.warm_workers == 33);
  CHECK(settings.drain_seconds == 42);
  CHECK(origin(settings, "log_level") == "default");
}

TEST_CASE("clients by the loopback are waited for where somebody says so, and all others without a word") {
  Told told;
  CHECK(told.read().resume_seconds_of(/*by_loopback=*/false) == 60);
  CHECK(told.read().resume_seconds_of(/*by_loopback=*/true) == 0);
  for (const bool by_loopback : {false, true}) {
    CHECK(told.read({"--resume-seconds", "60"}).resume_seconds_of(by_loopback) == 60);
    CHECK(told.read({"--resume-seconds", "0"}).resume_seconds_of(by_loopback) == 0);
  }
  told.in_file("resume_seconds = 7\n");
  CHECK(told.read().resume_seconds_of(/*by_loopback=*/true) == 7);
}

TEST_CASE("switches are set and unset at every level") {
  SECTION("file over default") { CHECK_FALSE(Told().in_file("warm_context = false").read().warm_context); }
  SECTION("variable over file") {
    CHECK(Told().in_file("warm_context = false").in_environment("FARGPUD_WARM_CONTEXT", "yes").read().warm_context);
    CHECK_FALSE(Told().in_file("warm_context = true").in_environment("FARGPUD_WARM_CONTEXT", "0").read().warm_context);
  }
  SECTION("flag over variable") {
    CHECK(Told().in_environment("FARGPUD_INSECURE", "false").read({"--insecure"}).insecure);
    CHECK_FALSE(Told().in_environment("FARGPUD_INSECURE", "true").read({"--no-insecure"}).insecure);
    CHECK_FALSE(Told().read({"--no-warm-context"}).warm_context);
  }
}

TEST_CASE("values of the file may be written as TOML has them") {
  Told told;
  const Settings settings = told.in_file("devices = [0, 2]\nlog_level = \"debug\"\nimage_bytes_max = 5_000\n").read();
  CHECK(settings.devices == "0,2");
  CHECK(settings.log_level == "debug");
  CHECK(settings.image_bytes_max == 5000);
}

TEST_CASE("bytes may have a unit, wherever they are said") {
  CHECK(Told().read({"--driver-bytes-max=2GiB"}).driver_bytes_max == std::uint64_t{2} << 30);
  CHECK(Told().in_environment("FARGPUD_HOST_BYTES_MAX", "1.5 MiB").read().host_bytes_max == 3u << 19);
  CHECK(Told().in_file("image_bytes_max = \"4g\"").read().image_bytes_max == std::uint64_t{4} << 30);
  CHECK(Told().read({"--driver-bytes-max=0"}).driver_bytes_max == 0);
  CHECK(Told().complaint({"--driver-bytes-max=lots"}) ==
        "driver_bytes_max is 'lots' (flag --driver-bytes-max); an amount is wanted, for example 4GiB");
  for (const std::string wrong : {"\"lots\"", "-1", "true"})
    CHECK_THAT(Told().in_file("driver_bytes_max = " + wrong).complaint(),
               Catch::EndsWith("; an amount is wanted, for example driver_bytes_max = \"4GiB\""));
  CHECK(Told().complaint({"--sessions-max=4GiB"}) ==
        "sessions_max is '4GiB' (flag --sessions-max); a whole number is wanted");
}

TEST_CASE("every setting says where it came from, once") {
  Told told;
  const Settings settings = told.read({"--show-config"});
  CHECK(told.wish == Command::show_config);
  CHECK(settings.origins.size() == 60);
  for (const Settings::Origin& one : settings.origins) {
    unsigned times = 0;
    for (const Settings::Origin& other : settings.origins) times += other.name == one.name;
    CHECK(times == 1);
    CHECK_FALSE(one.from.empty());
  }
}

TEST_CASE("a value that cannot be is named, with where it came from and what would be right") {
  CHECK(Told().in_environment("FARGPUD_SESSIONS_MAX", "many").complaint() ==
        "sessions_max is 'many' (environment variable FARGPUD_SESSIONS_MAX); a whole number is wanted");
  CHECK(Told().complaint({"--spin-us=-1"}) == "spin_us is '-1' (flag --spin-us); a whole number is wanted");
  CHECK(Told().complaint({"--spin-us=1x"}) == "spin_us is '1x' (flag --spin-us); a whole number is wanted");
  CHECK(Told().complaint({"--spin-us=99999999999999999999"}) ==
        "spin_us is '99999999999999999999' (flag --spin-us); a whole number is wanted");
  CHECK(Told().in_environment("FARGPUD_INSECURE", "maybe").complaint() ==
        "insecure is 'maybe' (environment variable FARGPUD_INSECURE); true or false is wanted");
  CHECK(Told().complaint({"--gpudirect=fast"}) == "gpudirect is 'fast'; use auto, on or off");
  CHECK(Told().complaint({"--log-level=loud"}) == "log_level is 'loud'; use error, warn, info or debug");
  CHECK(Told().complaint({"--log-format=xml"}) == "log_format is 'xml'; use text or json");
  CHECK(Told().complaint({"--sessions-max=0"}) == "sessions_max is 0; give a number from 1 to 100000");
  CHECK(Told().complaint({"--start-seconds=61"}) == "start_seconds is 61; give a number from 1 to 60");
  CHECK(Told().complaint({"--silence-seconds", "0"}) == "silence_seconds is 0; give a number from 1 to 86400");
  CHECK(Told().complaint({"--metrics-listen=127.0.0.1"}) ==
        "metrics_listen is '127.0.0.1': '127.0.0.1' is not host:port");
  CHECK(Told().complaint({"--devices=0,x"}) == "devices is '0,x': 'x' is no device number");
  CHECK(Told().complaint({"--devices=1,0,1"}) == "devices is '1,0,1': it names device 1 twice; name each once");
  CHECK(Told().complaint({"--devices=-1"}) == "devices is '-1': '-1' is no device number");
}

TEST_CASE("a file that is wrong is named, with the place") {
  Told told;
  CHECK(told.in_file("lisen = 'x'").complaint() ==
        told.file.string() +
            " (line 1): there is no setting 'lisen'; perhaps 'listen' is meant; `fargpud --help` lists them all");
  CHECK_THAT(told.in_file("listen = \n").complaint(),
             Catch::StartsWith(told.file.string() + ": ") && Catch::Contains("line 1"));
  fs::remove(told.file);
  CHECK_THAT(told.complaint(), Catch::StartsWith(told.file.string() + ": "));
}

TEST_CASE("names that there are not are told with the line, and with what may be meant") {
  const auto complaint = [](const std::string& text) {
    Told told;
    const std::string said = told.in_file("# this host\n" + text + "\n").complaint(),
                      place = told.file.string() + " (line 2): ";
    INFO(said);
    CHECK(said.starts_with(place));
    return said.substr(std::min(place.size(), said.size()));
  };
  CHECK(complaint("polisy = \"fair\"") ==
        "there is no setting 'polisy'; perhaps 'policy' is meant; `fargpud --help` lists them all");
  CHECK(complaint("colour = 1") == "there is no setting 'colour'; `fargpud --help` lists them all");
  CHECK(complaint("[tenants.lab]\nsessions = 1") == "there is no setting 'tenants'; did you mean [tenant.lab]?");
  CHECK(complaint("[tenants]\nsessions = 1") == "there is no setting 'tenants'; did you mean [tenant.NAME]?");
  CHECK(complaint("[network]\nport = 1") == "there is no setting 'network'; the only tables are [tenant.NAME]");
}

TEST_CASE("text without quotes is told as that, with the line") {
  Told told;
  const std::string place = told.file.string();
  CHECK(told.in_file("spin_us = 1\npolicy = fair  # in turns\n").complaint() ==
        place + " (line 2): text goes in quotes: policy = \"fair\"");
  CHECK(told.in_file("token_file = /etc/fargpu/tokens\n").complaint() ==
        place + " (line 1): text goes in quotes: token_file = \"/etc/fargpu/tokens\"");
  CHECK(told.in_file("driver = libcuda.so.1").complaint() ==
        place + " (line 1): text goes in quotes: driver = \"libcuda.so.1\"");
  CHECK_THAT(told.in_file("policy = \"fair\nspin_us = 1\n").complaint(),
             Catch::Contains("line 1") && !Catch::Contains("quotes:"));
}

TEST_CASE("a value of the wrong type in the file is named, with what belongs there") {
  const auto complaint = [](const std::string& text) {
    Told told;
    const std::string said = told.in_file("# what this host offers\n" + text + "\n").complaint(),
                      place = told.file.string() + " (line 2): ";
    INFO(said);
    CHECK(said.starts_with(place));
    return said.substr(std::min(place.size(), said.size()));
  };
  CHECK(complaint("sessions_max = \"many\"") ==
        "sessions_max is the text \"many\"; a whole number is wanted, for example sessions_max = 256");
  CHECK(complaint("sessions_max = \"12\"") ==
        "sessions_max is the text \"12\"; a whole number is wanted, for example sessions_max = 256");
  CHECK(complaint("spin_us = 1.5") ==
        "spin_us is the number 1.5, with a fraction; a whole number is wanted, for example spin_us = 500");
  CHECK(complaint("spin_us = -1") == "spin_us is the number -1; a whole number is wanted, for example spin_us = 500");
  CHECK(complaint("quantum_ms = true") == "quantum_ms is true; a whole number is wanted, for example quantum_ms = 10");
  CHECK(complaint("quantum_ms = 2026-11-20") ==
        "quantum_ms is a date or a time; a whole number is wanted, for example quantum_ms = 10");
  CHECK(complaint("insecure = \"no\"") == "insecure is the text \"no\"; true or false is wanted, without quotes");
  CHECK(complaint("sandbox = 1") == "sandbox is the number 1; true or false is wanted, without quotes");
  const std::string text_wanted =
      "; a text in quotes is wanted, or a list of what `fargpud --help` separates by commas";
  CHECK(complaint("driver = false") == "driver is false" + text_wanted);
  CHECK(complaint("policy = 3") == "policy is the number 3" + text_wanted);
  CHECK(complaint("[listen]") == "listen is a table" + text_wanted);
  CHECK(complaint("devices = [0, 1.5]") == "devices is a list" + text_wanted);
  CHECK(Told().in_file("devices = 1").read().devices == "1");
}

TEST_CASE("the standard file counts if it is there and no other was named") {
  const fs::path standard = FARGPU_SYSCONFDIR "/fargpu/fargpud.toml";
  fs::create_directories(standard.parent_path());
  std::ofstream(standard) << "spin_us = 77\nwarm_workers = 7";
  const Settings settings = Told().read();
  const Settings other = Told().in_file("spin_us = 88").read();
  fs::remove(standard);
  CHECK(settings.spin_us == 77);
  CHECK(origin(settings, "spin_us") == "file " + standard.string());
  CHECK(other.spin_us == 88);
  CHECK(other.warm_workers == 1);
  CHECK(Told().read().spin_us == 500);
}

TEST_CASE("unknown flags and variables are named") {
  Told told;
  CHECK(told.complaint({"--no-such-flag"}) == "there is no option '--no-such-flag'; see `fargpud --help`");
  CHECK(told.complaint({"--lisen", "127.0.0.1:0"}) ==
        "there is no option '--lisen'; perhaps '--listen' is meant; see `fargpud --help`");
  CHECK(Told()
            .in_environment("FARGPUD_POLCY", "fair")
            .in_environment("FARGPUD_POLICY", "fair")
            .read()
            .unknown_variables == std::vector<std::string>{"FARGPUD_POLCY"});
  told.read({"--version"});
  CHECK(told.wish == Command::done);
  CHECK(told.exit_code == 0);
}

TEST_CASE("addresses to listen on are taken apart") {
  const auto read = [](const std::string& text) {
    std::string all;
    for (const ListenAddress& address : parse_listen(text))
      all += address.socket.empty() ? "<" + address.host + "|" + std::to_string(address.port) + ">"
                                    : "<" + address.socket + ">";
    return all;
  };
  CHECK(read("127.0.0.1:8470") == "<127.0.0.1|8470>");
  CHECK(read("localhost:0,[::1]:9") == "<localhost|0><::1|9>");
  CHECK(read("unix:/run/fargpud.sock,a:1") == "</run/fargpud.sock><a|1>");
  CHECK_THROWS_WITH(read("unix:here"), "listen is 'unix:here': 'unix:here' names no Unix socket by its whole path");
  CHECK_THROWS_AS(read("unix:/" + std::string(107, 'x')), SettingsError);
  for (const std::string wrong :
       {"", "host", "host:", ":1", "host:x", "host:65536", "host:1,", "a:1,,b:2", "[::1]", "host:-1"}) {
    INFO(wrong);
    if (wrong == "host:1,") CHECK(read(wrong) == "<host|1>");
    else CHECK_THROWS_AS(read(wrong), SettingsError);
  }
  CHECK_THROWS_WITH(parse_listen("127.0.0.1", "metrics_listen"),
                    "metrics_listen is '127.0.0.1': '127.0.0.1' is not host:port");
  CHECK_THROWS_WITH(read("a:1,b"), "listen is 'a:1,b': 'b' is not host:port or unix:/path");
}

TEST_CASE("device numbers are taken apart") {
  CHECK(parse_devices("").empty());
  CHECK(parse_devices("3,0") == std::vector<int>{3, 0});
  for (const std::string wrong : {"a", "0,", "0,,1", "-1", "1 2", "0x1", "99999999999"}) {
    INFO(wrong);
    if (wrong == "0,") CHECK(parse_devices(wrong) == std::vector<int>{0});
    else CHECK_THROWS_AS(parse_devices(wrong), SettingsError);
  }
}
