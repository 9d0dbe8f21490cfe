// fargpu: the command line of people who use remote GPUs.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client/connect/dial_error.h"
#include "commands.h"
#include "help.h"
#include "protocol/given_words.h"

namespace fargpu::client::cli {
namespace {

std::string exit_codes(std::initializer_list<std::pair<int, const char*>> codes) {
  std::string text = "Exit codes:";
  for (const auto& [code, meaning] : codes) text += fmt::format("\n  {:<4}{}", code, meaning);
  return text;
}

constexpr const char* one_host_help =
    "The GPU host, or the name by which `ls` shows it in the pool of FARGPU_POOL (default: FARGPU_POOL)";

void add_output(CLI::App* command, std::string& output, const std::string& help = "table or json") {
  command->add_option("-o,--output", output, help)->capture_default_str()->check(CLI::IsMember({"table", "json"}));
}

void add_filter(CLI::App* command, Filter& filter) {
  command->add_option("--host", filter.host, "Hosts of a pool to show, by a pattern such as 'gpu1*'");
  command->add_option("--tenant", filter.tenant, "Tenant whose sessions and requests are shown");
  command->add_option("--model", filter.model, "Part of the model of the devices that are shown, such as H200");
}

void add_exit_codes_of_hosts(CLI::App* command) {
  command->footer(
      exit_codes({{0, "all hosts answered"}, {exit_own_error, "a host did not answer, or an error of fargpu"}}));
}

/// All commands, with room for what is said with them. The order in which commands and options are added is the one in
/// which the help shows them.
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App& app() { return app_; }
  /// What was given runs, after app() has read it. Returns its exit code.
  int run();

 private:
  void add_run();
  void add_list();
  void add_top();
  void add_policy();
  void add_quota();
  void add_pool();
  void add_end();
  void add_evict();
  void add_drain();
  void add_cache();
  void add_smi();
  void add_doctor();
  void add_variables();
  void add_token();
  void add_pki();
  /// An option of a command that says hosts; where it is not given, --pool before the command says them.
  void add_hosts(CLI::App* command, const std::string& names, std::string& hosts, const std::string& help);
  /// What a command does.
  void on(const CLI::App* command, std::function<int()> job) { commands_.emplace_back(command, std::move(job)); }

  CLI::App app_{"fargpu runs programs on GPUs of other machines.", "fargpu"};
  std::vector<std::pair<const CLI::App*, std::function<int()>>> commands_;
  std::string pool_;
  std::vector<std::string*> hosts_;  // of all commands

  RunOptions run_;
  ListOptions list_;
  TopOptions top_;
  PolicyOptions policy_;
  QuotaOptions quota_;
  PoolTenantOptions pool_tenant_;
  EndOptions end_;
  EndOptions evict_;
  DrainOptions drain_;
  CacheOptions cache_;
  SmiOptions smi_;
  DoctorOptions doctor_;
  VariablesOptions variables_;
  TokenOptions token_;
  PkiOptions pki_;
};

CommandLine::CommandLine() {
  app_.set_version_flag("--version", "fargpu " FARGPU_VERSION);
  app_.require_subcommand(1);
  app_.add_option("--pool", pool_,
                  "GPU hosts, host[:port][,host...] (default: FARGPU_POOL); may stand behind the command too");
  add_run();
  add_list();
  add_top();
  add_policy();
  add_quota();
  add_pool();
  add_end();
  add_evict();
  add_drain();
  add_cache();
  add_smi();
  add_doctor();
  add_variables();
  add_token();
  add_pki();
  // Commands that are added later would have it too.
  app_.footer("`fargpu COMMAND --help` tells more of each, `fargpu variables` the variables of the environment.");
  complete_help(app_);
}

int CommandLine::run() {
  for (std::string* const own : hosts_)
    if (own->empty()) *own = pool_;
  for (const auto& [command, job] : commands_)
    if (command->parsed()) return job();
  throw std::logic_error("no command was given");
}

void CommandLine::add_hosts(CLI::App* command, const std::string& names, std::string& hosts, const std::string& help) {
  command->add_option(names, hosts, help);
  hosts_.push_back(&hosts);
}

void CommandLine::add_run() {
  CLI::App* const run_command = app_.add_subcommand("run", "Run a program with the pool's GPUs");
  add_hosts(run_command, "--pool", run_.pool, "GPU hosts, host[:port][,host...] (default: FARGPU_POOL)");
  run_command->add_option("-n,--gpus", run_.gpus, "Number of GPUs (default: all of the host; FARGPU_GPUS)");
  run_command->add_option("--hosts", run_.hosts,
                          "Number of hosts that the GPUs may be of, where no host alone has enough (default: 1; "
                          "FARGPU_HOSTS)");
  run_command->add_option("-m,--mem", run_.memory,
                          "Memory of each GPU to be kept for the job, for example 8GiB (FARGPU_MEM)");
  run_command->add_option("-c,--compute", run_.compute, "Share of each GPU, for example 50% (FARGPU_COMPUTE)");
  run_command->add_option("--priority", run_.priority, "latency-critical, normal or best-effort (FARGPU_PRIORITY)");
  run_command->add_option("--wait", run_.wait,
                          "How long to wait while others hold what is asked for, for example 10min (FARGPU_WAIT)");
  run_command->add_flag("--no-check", run_.no_check, "Start the program without asking the pool first");
  run_command->add_option("program", run_.arguments, "The program and its arguments, after --")->required();
  run_command->prefix_command(false);
  run_command->positionals_at_end();
  run_command->footer(
      exit_codes(
          {{exit_no_capacity, "no capacity now, or the host shuts down; trying again later may help"},
           {exit_own_error, "an error of fargpu, such as a wrong setting or a host that cannot be reached"},
           {exit_denied, "the host does not serve this client, or never so much; or the program cannot be executed"},
           {exit_not_found, "the program was not found"}}) +
      "\nAny other code is the program's own.");
  on(run_command, [this] { return cli::run(run_); });
}

void CommandLine::add_list() {
  CLI::App* const list_command = app_.add_subcommand("ls", "Show hosts, devices and sessions");
  add_hosts(list_command, "--pool", list_.pool, "GPU hosts (default: FARGPU_POOL)");
  add_output(list_command, list_.output);
  add_filter(list_command, list_.filter);
  add_exit_codes_of_hosts(list_command);
  on(list_command, [this] { return cli::list(list_); });
}

void CommandLine::add_top() {
  CLI::App* const top_command =
      app_.add_subcommand("top", "Show the devices and their sessions, renewed every few seconds; q ends it");
  add_hosts(top_command, "--pool", top_.pool, "GPU hosts (default: FARGPU_POOL)");
  add_output(top_command, top_.output, "table, or json, which is printed once");
  top_command->add_option("-d,--delay", top_.seconds, "Seconds between updates")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  top_command->add_flag("--once", top_.once, "Print one table and end, as without a terminal");
  add_filter(top_command, top_.filter);
  add_exit_codes_of_hosts(top_command);
  on(top_command, [this] { return cli::top(top_); });
}

void CommandLine::add_policy() {
  CLI::App* const policy_command =
      app_.add_subcommand("policy", "How a host's devices are shared (set: on the GPU host, or by administrators)");
  policy_command->require_subcommand(1);
  CLI::App* const policy_show = policy_command->add_subcommand("show", "Show it");
  CLI::App* const policy_set = policy_command->add_subcommand("set", "Share by another policy from now on");
  policy_set->add_option("policy", policy_.policy, "free, fair, fixed or exclusive")->required();
  for (CLI::App* const verb : {policy_show, policy_set}) add_hosts(verb, "--host,--pool", policy_.host, one_host_help);
  on(policy_command, [this] { return cli::policy(policy_); });
}

void CommandLine::add_quota() {
  CLI::App* const quota_command = app_.add_subcommand(
      "quota", "Show tenants' limits, use and queue, or change what a running lease gets (administrators)");
  quota_command
      ->add_option("session", quota_.session, "To change a lease: any session of it, as `fargpu ls` numbers it")
      ->check(CLI::Range(std::uint64_t{1}, ~std::uint64_t{0}));
  quota_command->add_option("--percent", quota_.percent, "Most of each device, in percent, under the policy fixed")
      ->check(CLI::Range(1, 100));
  quota_command->add_option("--weight", quota_.weight, "Weight against other leases, under the policy fair")
      ->check(CLI::Range(1, 10'000));
  add_hosts(quota_command, "--host,--pool", quota_.host, "The GPU host (default: FARGPU_POOL)");
  add_output(quota_command, quota_.output, "table or json, to show");
  on(quota_command, [this] { return cli::quota(quota_); });
}

void CommandLine::add_pool() {
  CLI::App* const pool_command =
      app_.add_subcommand("pool", "What tenants may have of all hosts of a pool with a registry (administrators)");
  pool_command->require_subcommand(1);
  CLI::App* const pool_set = pool_command->add_subcommand("set", "Set a tenant's limits; what is left out is none");
  pool_set->add_option("tenant", pool_tenant_.tenant, "The tenant")->required();
  pool_set->add_option("--mem", pool_tenant_.memory, "Memory on all GPUs together, for example 160GiB");
  pool_set->add_option("--compute", pool_tenant_.compute, "Shares of GPUs together, 100% for each, for example 400%");
  pool_set->add_option("--leases", pool_tenant_.leases, "Leases at once, of one host each");
  pool_set->add_option("--weight", pool_tenant_.weight, "Weight in the queue, against other tenants (default: 100)")
      ->check(CLI::Range(1, 10'000));
  pool_set->add_flag("--forget", pool_tenant_.forget, "Let the tenant have no limits, and the usual weight");
  add_hosts(pool_set, "--host,--pool", pool_tenant_.host, "A host of the pool (default: FARGPU_POOL)");
  on(pool_set, [this] { return cli::set_pool_tenant(pool_tenant_); });
}

void CommandLine::add_end() {
  CLI::App* const end_command = app_.add_subcommand("end", "End a session (administrators)");
  end_command->add_option("session", end_.session, "The session, as `fargpu ls` numbers it")->required();
  add_hosts(end_command, "--host,--pool", end_.host, one_host_help);
  on(end_command, [this] { return cli::end_session(end_); });
}

void CommandLine::add_evict() {
  CLI::App* const evict_command = app_.add_subcommand(
      "evict", "Move a session's device memory to the host's memory or disk, until its next call (administrators)");
  evict_command->add_option("session", evict_.session, "The session, as `fargpu ls` numbers it")->required();
  add_hosts(evict_command, "--host,--pool", evict_.host, one_host_help);
  on(evict_command, [this] { return cli::evict_session(evict_); });
}

void CommandLine::add_drain() {
  CLI::App* const drain_command =
      app_.add_subcommand("drain", "Take no new sessions on a host; those that run go on (administrators)");
  drain_command->add_option("--for", drain_.time, "How long, for example 2h (default: until `fargpu resume`)");
  CLI::App* const resume_command =
      app_.add_subcommand("resume", "Take new sessions again on a drained host (administrators)");
  for (CLI::App* const verb : {drain_command, resume_command})
    add_hosts(verb, "--host,--pool", drain_.host, one_host_help);
  on(drain_command, [this] { return cli::drain(drain_); });
  on(resume_command, [this] { return cli::resume(drain_); });
}

void CommandLine::add_cache() {
  CLI::App* const cache_command =
      app_.add_subcommand("cache", "Show what a host keeps of contents of memory that programs have sent, or clear it");
  cache_command->add_flag("--clear", cache_.clear, "Have the host keep nothing of them any more");
  cache_command->add_option("--tenant", cache_.tenant,
                            "Tenant that has sent them (default: the client's own; others only for administrators)");
  add_hosts(cache_command, "--host,--pool", cache_.host, one_host_help);
  add_output(cache_command, cache_.output);
  on(cache_command, [this] { return cli::cache(cache_); });
}

void CommandLine::add_smi() {
  CLI::App* const smi_command =
      app_.add_subcommand("smi", "Show the devices of the pool's hosts, what they do, and whose programs have them");
  add_hosts(smi_command, "--pool", smi_.pool, "GPU hosts (default: FARGPU_POOL)");
  add_output(smi_command, smi_.output);
  add_filter(smi_command, smi_.filter);
  on(smi_command, [this] { return cli::smi(smi_); });
}

void CommandLine::add_doctor() {
  CLI::App* const doctor_command =
      app_.add_subcommand("doctor", "Check everything that a program will need, and say how to fix it");
  add_hosts(doctor_command, "--pool", doctor_.pool, "GPU hosts (default: FARGPU_POOL)");
  add_output(doctor_command, doctor_.output);
  doctor_command->footer(exit_codes({{0, "everything is in order"}, {1, "something is to be fixed"}}));
  on(doctor_command, [this] { return cli::doctor(doctor_); });
}

void CommandLine::add_variables() {
  CLI::App* const variables_command =
      app_.add_subcommand("variables", "List the variables of the environment that a client reads");
  add_output(variables_command, variables_.output);
  on(variables_command, [this] { return cli::list_variables(variables_); });
}

void CommandLine::add_token() {
  CLI::App* const token_command =
      app_.add_subcommand("token", "Tokens, by which a host knows its clients (on the GPU host)");
  token_command->require_subcommand(1);
  const auto token_verb = [&](const char* name, const char* help) {
    CLI::App* const verb = token_command->add_subcommand(name, help);
    verb->add_option("--file", token_.file, "The broker's token_file")->required();
    return verb;
  };
  CLI::App* const token_create = token_verb("create", "Make a token, and show it once");
  token_create->add_option("--tenant", token_.tenant, "Tenant of the token")->required();
  token_create->add_option("--name", token_.name, "Name of the token in the list")->required();
  token_create->add_option("--ttl", token_.ttl, "Lifetime, for example 24h, or never")->capture_default_str();
  CLI::App* const token_list = token_verb("list", "List the tokens");
  CLI::App* const token_revoke = token_verb("revoke", "Revoke a token");
  token_revoke->add_option("name", token_.name, "Name of the token")->required();
  on(token_create, [this] { return cli::create_token(token_); });
  on(token_list, [this] { return cli::list_tokens(token_); });
  on(token_revoke, [this] { return cli::revoke_token(token_); });
}

void CommandLine::add_pki() {
  CLI::App* const pki_command = app_.add_subcommand("pki", "Certificates for sites that have none of their own");
  pki_command->require_subcommand(1);
  const auto pki_verb = [&](const char* name, const char* life, const char* help) {
    CLI::App* const verb = pki_command->add_subcommand(name, help);
    verb->add_option("--folder", pki_.folder, "Folder of the certificates and keys")->required();
    verb->add_option("--life", pki_.life,
                     std::string("Lifetime of the certificate, for example 90d (default: ") + life + ")");
    return verb;
  };
  CLI::App* const pki_init = pki_verb("init", "10 years", "Make an authority");
  CLI::App* const pki_issue = pki_verb("issue", "365d", "Make the certificate of a server or of a tenant's clients");
  pki_issue->add_option("--server", pki_.server, "Name of a GPU host");
  pki_issue->add_option("--host", pki_.hosts, "Names and addresses by which clients reach it");
  pki_issue->add_option("--tenant", pki_.tenant, "Tenant of the clients");
  CLI::App* const pki_renew =
      pki_verb("renew", "365d", "Make a certificate anew, for the same key and names, before it ends");
  pki_renew->add_option("name", pki_.name, "What --server or --tenant said when it was issued")->required();
  on(pki_init, [this] { return cli::init_pki(pki_); });
  on(pki_issue, [this] { return cli::issue_pki(pki_); });
  on(pki_renew, [this] { return cli::renew_pki(pki_); });
}

/// What could not be read of the command line, rather than what is missing because of it: an option first, as its value
/// could not be read either.
struct NotUnderstood {
  const CLI::App* of;  // the command that was begun, or one that is behind it
  std::string help;    // how it is written
  std::vector<std::string> words;
};

std::vector<std::string> remaining_words(const CLI::App& command) {
  std::vector<std::string> words = command.remaining();
  std::erase(words, "--");
  std::stable_partition(words.begin(), words.end(), [](const std::string& one) { return one.starts_with('-'); });
  return words;
}

NotUnderstood not_understood(const CLI::App& app) {
  NotUnderstood found{&app, "fargpu", remaining_words(app)};
  while (found.words.empty() && !found.of->get_subcommands().empty()) {
    found.of = found.of->get_subcommands().front();
    found.help += " " + found.of->get_name();
    found.words = remaining_words(*found.of);
  }
  return found;
}

// Says so where the line begins with a word that is no command. False if it does not.
bool report_unknown_command(const CLI::App& app, const std::string& word) {
  const auto commands = app.get_subcommands(nullptr);
  const auto is_word = [&](const CLI::App* command) { return command->get_name() == word; };
  if (word.empty() || word[0] == '-' || std::any_of(commands.begin(), commands.end(), is_word)) return false;
  std::cerr << "fargpu: there is no command '" << word << "'; commands are";
  for (const CLI::App* command : commands) std::cerr << " " << command->get_name();
  std::cerr << perhaps_meant(app, word) << "; `fargpu run -- " << word << "` runs a program\n";
  return true;
}

// Says why a line could not be read, or the help or version that it asks for. Returns the exit code.
int explain(const CLI::App& app, const std::string& word, const CLI::ParseError& error) {
  if (report_unknown_command(app, word)) return exit_own_error;
  if (error.get_exit_code() == 0) return app.exit(error);
  const auto [of, help, unknown] = not_understood(app);
  const bool strange = !unknown.empty() && (dynamic_cast<const CLI::RequiredError*>(&error) ||
                                            dynamic_cast<const CLI::ExtrasError*>(&error));
  std::cerr << "fargpu: "
            << (strange ? "`" + help + "` has no " + (unknown[0].starts_with('-') ? "option" : "command") + " '" +
                              unknown[0] + "'" + perhaps_meant(*of, unknown[0])
                        : error.what())
            << "; see `" << help << " --help`\n";
  return exit_own_error;
}

// Runs what was given, and says what fails. Returns the exit code.
int run_given(CommandLine& line) {
  try {
    const int code = line.run();
    if (!std::cout.flush()) throw std::runtime_error("the output cannot be written; is the disk full?");
    return code;
  } catch (const DialError& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return error.reason == fargpu::wire::Failure::Reason::DENIED ? exit_denied : exit_own_error;
  } catch (const std::exception& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return exit_own_error;
  }
}

}  // namespace
}  // namespace fargpu::client::cli

int main(int argc, char** argv) {
  using namespace fargpu::client;
  cli::CommandLine line;
  // What people try first.
  if (argc == 2 && (std::strcmp(argv[1], "help") == 0 || std::strcmp(argv[1], "version") == 0)) {
    static char help[] = "--help", version[] = "--version";
    argv[1] = argv[1][0] == 'h' ? help : version;
  }
  try {
    std::set<std::string, std::less<>> options;
    fargpu::add_option_names(std::as_const(line.app()), options);
    fargpu::GivenWords given(argc, argv, options);
    line.app().parse(given.count(), given.words());
  } catch (const CLI::ParseError& error) {
    return cli::explain(line.app(), argc > 1 ? argv[1] : "", error);
  }
  return cli::run_given(line);
}
