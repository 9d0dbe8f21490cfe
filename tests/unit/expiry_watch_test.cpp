// Certificates that end.

#include <catch2/catch.hpp>
#include <unistd.h>

#include <filesystem>

#include "protocol/site/pki.h"
#include "server/broker/expiry_watch.h"

using namespace fargpu;
using namespace fargpu::server;

TEST_CASE("a certificate that has expired is refused, with its end and what to do") {
  char name[] = "/tmp/fargpu-expiry-XXXXXX";
  REQUIRE(::mkdtemp(name));
  const std::filesystem::path folder = name;
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  site::make_authority(folder, std::chrono::days(20));
  const auto files = site::issue_server(folder, "host", {"localhost"}, std::chrono::days(10));
  CHECK(site::expiry(files.certificate) > now + std::chrono::days(9));
  CHECK(site::expiry(files.certificate) <= now + std::chrono::days(10) + std::chrono::minutes(1));
  CHECK_THROWS_AS(site::expiry(files.key), site::PkiError);
  CHECK_THROWS_AS(site::expiry(folder / "none"), site::PkiError);

  Settings settings;
  ExpiryWatch::require_valid(settings, now);
  settings.tls_certificate = files.certificate;
  settings.tls_client_ca = folder / "ca.crt";
  ExpiryWatch::require_valid(settings, now + std::chrono::days(9));
  CHECK_THROWS_WITH(ExpiryWatch::require_valid(settings, now + std::chrono::days(11)),
                    Catch::Contains("tls_certificate: ") && Catch::Contains("host.crt has expired on 2") &&
                        Catch::Contains("pki renew"));
  settings.tls_certificate.clear();
  ExpiryWatch::require_valid(settings, now + std::chrono::days(11));
  CHECK_THROWS_WITH(ExpiryWatch::require_valid(settings, now + std::chrono::days(21)),
                    Catch::Contains("tls_client_ca: "));
  std::filesystem::remove_all(folder);
}
