// fargpu: the command line of people who use remote GPUs.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <string>
#include <utility>

#include "client/connect/dial_error.h"
#include "commands.h"
#include "help.h"

namespace {

std::string exit_codes(std::initializer_list<std::pair<int, const char*>> codes) {
  std::string text = "Exit codes:";
  for (const auto& [code, meaning] : codes) text += fmt::format("\n  {:<4}{}", code, meaning);
  return text;
}

constexpr const char* one_host_help =
    "The GPU host, or the name by which `ls` shows it in the pool of FARGPU_POOL (default: FARGPU_POOL)";

}  // namespace

int main(int argc, char** argv) {
  using namespace fargpu::client;
  CLI::App app("fargpu runs programs on GPUs of other machines.", "fargpu");
  app.set_version_flag("--version", "fargpu " FARGPU_VERSION);
  app.require_subcommand(1);
  std::string pool;
  app.add_option("--pool", pool,
                 "GPU hosts, host[:port][,host...] (default: FARGPU_POOL); may stand behind the command too");

  cli::RunOptions run;
  CLI::App* const run_command = app.add_subcommand("run", "Run a program with the pool's GPUs");
  run_command->add_option("--pool", run.pool, "GPU hosts, host[:port][,host...] (default: FARGPU_POOL)");
  run_command->add_option("-n,--gpus", run.gpus, "Number of GPUs (default: all of the host; FARGPU_GPUS)");
  run_command->add_option("--hosts", run.hosts,
                          "Number of hosts that the GPUs may be of, where no host alone has enough (default: 1; "
                          "FARGPU_HOSTS)");
  run_command->add_option("-m,--mem", run.memory,
                          "Memory of each GPU to be kept for the job, for example 8GiB (FARGPU_MEM)");
  run_command->add_option("-c,--compute", run.compute, "Share of each GPU, for example 50% (FARGPU_COMPUTE)");
  run_command->add_option("--priority", run.priority, "latency-critical, normal or best-effort (FARGPU_PRIORITY)");
  run_command->add_option("--wait", run.wait,
                          "How long to wait while others hold what is asked for, for example 10min (FARGPU_WAIT)");
  run_command->add_flag("--no-check", run.no_check, "Start the program without asking the pool first");
  run_command->add_option("program", run.arguments, "The program and its arguments, after --")->required();
  run_command->prefix_command(false);
  run_command->positionals_at_end();

  cli::ListOptions list;
  CLI::App* const list_command = app.add_subcommand("ls", "Show hosts, devices and sessions");
  list_command->add_option("--pool", list.pool, "GPU hosts (default: FARGPU_POOL)");
  list_command->add_option("-o,--output", list.output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  cli::TopOptions top;
  CLI::App* const top_command =
      app.add_subcommand("top", "Show the devices and their sessions, renewed every few seconds; q ends it");
  top_command->add_option("--pool", top.pool, "GPU hosts (default: FARGPU_POOL)");
  top_command->add_option("-o,--output", top.output, "table, or json, which is printed once")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));
  top_command->add_option("-d,--delay", top.seconds, "Seconds between updates")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  top_command->add_flag("--once", top.once, "Print one table and end, as without a terminal");

  cli::PolicyOptions policy;
  CLI::App* const policy_command =
      app.add_subcommand("policy", "How a host's devices are shared (set: on the GPU host, or by administrators)");
  policy_command->require_subcommand(1);
  CLI::App* const policy_show = policy_command->add_subcommand("show", "Show it");
  CLI::App* const policy_set = policy_command->add_subcommand("set", "Share by another policy from now on");
  policy_set->add_option("policy", policy.policy, "free, fair, fixed or exclusive")->required();
  for (CLI::App* const verb : {policy_show, policy_set}) verb->add_option("--host,--pool", policy.host, one_host_help);

  cli::QuotaOptions quota;
  CLI::App* const quota_command = app.add_subcommand(
      "quota", "Show tenants' limits, use and queue, or change what a running lease gets (administrators)");
  quota_command->add_option("session", quota.session, "To change a lease: any session of it, as `fargpu ls` numbers it")
      ->check(CLI::Range(std::uint64_t{1}, ~std::uint64_t{0}));
  quota_command->add_option("--percent", quota.percent, "Most of each device, in percent, under the policy fixed")
      ->check(CLI::Range(1, 100));
  quota_command->add_option("--weight", quota.weight, "Weight against other leases, under the policy fair")
      ->check(CLI::Range(1, 10'000));
  quota_command->add_option("--host,--pool", quota.host, "The GPU host (default: FARGPU_POOL)");
  quota_command->add_option("-o,--output", quota.output, "table or json, to show")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  cli::PoolTenantOptions pool_tenant;
  CLI::App* const pool_command =
      app.add_subcommand("pool", "What tenants may have of all hosts of a pool with a registry (administrators)");
  pool_command->require_subcommand(1);
  CLI::App* const pool_set = pool_command->add_subcommand("set", "Set a tenant's limits; what is left out is none");
  pool_set->add_option("tenant", pool_tenant.tenant, "The tenant")->required();
  pool_set->add_option("--mem", pool_tenant.memory, "Memory on all GPUs together, for example 160GiB");
  pool_set->add_option("--compute", pool_tenant.compute, "Shares of GPUs together, 100% for each, for example 400%");
  pool_set->add_option("--leases", pool_tenant.leases, "Leases at once, of one host each");
  pool_set->add_option("--weight", pool_tenant.weight, "Weight in the queue, against other tenants (default: 100)")
      ->check(CLI::Range(1, 10'000));
  pool_set->add_flag("--forget", pool_tenant.forget, "Let the tenant have no limits, and the usual weight");
  pool_set->add_option("--host,--pool", pool_tenant.host, "A host of the pool (default: FARGPU_POOL)");

  cli::EndOptions end;
  CLI::App* const end_command = app.add_subcommand("end", "End a session (administrators)");
  end_command->add_option("session", end.session, "The session, as `fargpu ls` numbers it")->required();
  end_command->add_option("--host,--pool", end.host, one_host_help);

  cli::EndOptions evict;
  CLI::App* const evict_command = app.add_subcommand(
      "evict", "Move a session's device memory to the host's memory or disk, until its next call (administrators)");
  evict_command->add_option("session", evict.session, "The session, as `fargpu ls` numbers it")->required();
  evict_command->add_option("--host,--pool", evict.host, one_host_help);

  cli::DrainOptions drain;
  CLI::App* const drain_command =
      app.add_subcommand("drain", "Take no new sessions on a host; those that run go on (administrators)");
  drain_command->add_option("--for", drain.time, "How long, for example 2h (default: until `fargpu resume`)");
  CLI::App* const resume_command =
      app.add_subcommand("resume", "Take new sessions again on a drained host (administrators)");
  for (CLI::App* const verb : {drain_command, resume_command})
    verb->add_option("--host,--pool", drain.host, one_host_help);

  cli::CacheOptions cache;
  CLI::App* const cache_command =
      app.add_subcommand("cache", "Show what a host keeps of contents of memory that programs have sent, or clear it");
  cache_command->add_flag("--clear", cache.clear, "Have the host keep nothing of them any more");
  cache_command->add_option("--tenant", cache.tenant,
                            "Tenant that has sent them (default: the client's own; others only for administrators)");
  cache_command->add_option("--host,--pool", cache.host, one_host_help);
  cache_command->add_option("-o,--output", cache.output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  cli::SmiOptions smi;
  CLI::App* const smi_command =
      app.add_subcommand("smi", "Show the devices of the pool's hosts, what they do, and whose programs have them");
  smi_command->add_option("--pool", smi.pool, "GPU hosts (default: FARGPU_POOL)");
  smi_command->add_option("-o,--output", smi.output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  for (const auto& [command, filter] : {std::pair(list_command, &list.filter), std::pair(top_command, &top.filter),
                                        std::pair(smi_command, &smi.filter)}) {
    command->add_option("--host", filter->host, "Hosts of a pool to show, by a pattern such as 'gpu1*'");
    command->add_option("--tenant", filter->tenant, "Tenant whose sessions and requests are shown");
    command->add_option("--model", filter->model, "Part of the model of the devices that are shown, such as H200");
  }

  cli::DoctorOptions doctor;
  CLI::App* const doctor_command =
      app.add_subcommand("doctor", "Check everything that a program will need, and say how to fix it");
  doctor_command->add_option("--pool", doctor.pool, "GPU hosts (default: FARGPU_POOL)");
  doctor_command->add_option("-o,--output", doctor.output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  cli::VariablesOptions variables;
  CLI::App* const variables_command =
      app.add_subcommand("variables", "List the variables of the environment that a client reads");
  variables_command->add_option("-o,--output", variables.output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));

  cli::TokenOptions token;
  CLI::App* const token_command =
      app.add_subcommand("token", "Tokens, by which a host knows its clients (on the GPU host)");
  token_command->require_subcommand(1);
  const auto token_verb = [&](const char* name, const char* help) {
    CLI::App* const verb = token_command->add_subcommand(name, help);
    verb->add_option("--file", token.file, "The broker's token_file")->required();
    return verb;
  };
  CLI::App* const token_create = token_verb("create", "Make a token, and show it once");
  token_create->add_option("--tenant", token.tenant, "Tenant of the token")->required();
  token_create->add_option("--name", token.name, "Name of the token in the list")->required();
  token_create->add_option("--ttl", token.ttl, "Lifetime, for example 24h, or never")->capture_default_str();
  CLI::App* const token_list = token_verb("list", "List the tokens");
  CLI::App* const token_revoke = token_verb("revoke", "Revoke a token");
  token_revoke->add_option("name", token.name, "Name of the token")->required();

  cli::PkiOptions pki;
  CLI::App* const pki_command = app.add_subcommand("pki", "Certificates for sites that have none of their own");
  pki_command->require_subcommand(1);
  const auto pki_verb = [&](const char* name, const char* life, const char* help) {
    CLI::App* const verb = pki_command->add_subcommand(name, help);
    verb->add_option("--folder", pki.folder, "Folder of the certificates and keys")->required();
    verb->add_option("--life", pki.life,
                     std::string("Lifetime of the certificate, for example 90d (default: ") + life + ")");
    return verb;
  };
  CLI::App* const pki_init = pki_verb("init", "10 years", "Make an authority");
  CLI::App* const pki_issue = pki_verb("issue", "365d", "Make the certificate of a server or of a tenant's clients");
  pki_issue->add_option("--server", pki.server, "Name of a GPU host");
  pki_issue->add_option("--host", pki.hosts, "Names and addresses by which clients reach it");
  pki_issue->add_option("--tenant", pki.tenant, "Tenant of the clients");
  CLI::App* const pki_renew =
      pki_verb("renew", "365d", "Make a certificate anew, for the same key and names, before it ends");
  pki_renew->add_option("name", pki.name, "What --server or --tenant said when it was issued")->required();

  app.footer("`fargpu COMMAND --help` tells more of each, `fargpu variables` the variables of the environment.");
  run_command->footer(
      exit_codes({{cli::exit_no_capacity, "no capacity now, or the host shuts down; trying again later may help"},
                  {cli::exit_own_error, "an error of fargpu, such as a wrong setting or a host that cannot be reached"},
                  {cli::exit_denied,
                   "the host does not serve this client, or never so much; or the program cannot be executed"},
                  {cli::exit_not_found, "the program was not found"}}) +
      "\nAny other code is the program's own.");
  for (CLI::App* const command : {list_command, top_command})
    command->footer(
        exit_codes({{0, "all hosts answered"}, {cli::exit_own_error, "a host did not answer, or an error of fargpu"}}));
  doctor_command->footer(exit_codes({{0, "everything is in order"}, {1, "something is to be fixed"}}));

  cli::complete_help(app);

  // What people try first.
  if (argc == 2 && (std::strcmp(argv[1], "help") == 0 || std::strcmp(argv[1], "version") == 0)) {
    static char help[] = "--help", version[] = "--version";
    argv[1] = argv[1][0] == 'h' ? help : version;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const auto commands = app.get_subcommands(nullptr);
    const std::string word = argc > 1 ? argv[1] : "";
    const auto is_word = [&](const CLI::App* command) { return command->get_name() == word; };
    if (!word.empty() && word[0] != '-' && std::none_of(commands.begin(), commands.end(), is_word)) {
      std::cerr << "fargpu: there is no command '" << word << "'; commands are";
      for (const CLI::App* command : commands) std::cerr << " " << command->get_name();
      std::cerr << cli::perhaps_meant(app, word) << "; `fargpu run -- " << word << "` runs a program\n";
      return cli::exit_own_error;
    }
    if (error.get_exit_code() == 0) return app.exit(error);
    // What is not understood, rather than what is missing because of it: an option first, whose value is none either.
    const CLI::App* of = &app;  // the command that was begun, or one that is behind it
    std::string help = "fargpu";
    const auto not_understood = [&of] {
      std::vector<std::string> words = of->remaining();
      std::erase(words, "--");
      std::stable_partition(words.begin(), words.end(), [](const std::string& one) { return one.starts_with('-'); });
      return words;
    };
    std::vector<std::string> unknown = not_understood();
    while (unknown.empty() && !of->get_subcommands().empty()) {
      of = of->get_subcommands().front();
      help += " " + of->get_name();
      unknown = not_understood();
    }
    const bool strange = !unknown.empty() && (dynamic_cast<const CLI::RequiredError*>(&error) ||
                                              dynamic_cast<const CLI::ExtrasError*>(&error));
    std::cerr << "fargpu: "
              << (strange ? "`" + help + "` has no " + (unknown[0].starts_with('-') ? "option" : "command") + " '" +
                                unknown[0] + "'" + cli::perhaps_meant(*of, unknown[0])
                          : error.what())
              << "; see `" << help << " --help`\n";
    return cli::exit_own_error;
  }
  for (std::string* const own : {&run.pool, &list.pool, &top.pool, &policy.host, &quota.host, &end.host, &evict.host,
                                 &drain.host, &cache.host, &smi.pool, &doctor.pool, &pool_tenant.host})
    if (own->empty()) *own = pool;
  const auto command = [&] {
    if (run_command->parsed()) return cli::run(run);
    if (list_command->parsed()) return cli::list(list);
    if (top_command->parsed()) return cli::top(top);
    if (policy_command->parsed()) return cli::policy(policy);
    if (quota_command->parsed()) return cli::quota(quota);
    if (pool_set->parsed()) return cli::set_pool_tenant(pool_tenant);
    if (end_command->parsed()) return cli::end_session(end);
    if (evict_command->parsed()) return cli::evict_session(evict);
    if (drain_command->parsed()) return cli::drain(drain);
    if (resume_command->parsed()) return cli::resume(drain);
    if (cache_command->parsed()) return cli::cache(cache);
    if (smi_command->parsed()) return cli::smi(smi);
    if (variables_command->parsed()) return cli::list_variables(variables);
    if (token_create->parsed()) return cli::create_token(token);
    if (token_list->parsed()) return cli::list_tokens(token);
    if (token_revoke->parsed()) return cli::revoke_token(token);
    if (pki_init->parsed()) return cli::init_pki(pki);
    if (pki_issue->parsed()) return cli::issue_pki(pki);
    if (pki_renew->parsed()) return cli::renew_pki(pki);
    return cli::doctor(doctor);
  };
  try {
    const int code = command();
    if (!std::cout.flush()) throw std::runtime_error("the output cannot be written; is the disk full?");
    return code;
  } catch (const DialError& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return error.reason == fargpu::wire::Failure::Reason::DENIED ? cli::exit_denied : cli::exit_own_error;
  } catch (const std::exception& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return cli::exit_own_error;
  }
}
