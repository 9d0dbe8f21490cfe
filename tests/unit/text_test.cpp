// What people write, and what they and logs are shown.

#include "protocol/text.h"

#include <catch2/catch.hpp>

using namespace fargpu;

TEST_CASE("quantity: memory in whole and broken units") {
  CHECK(parse_bytes("0") == 0);
  CHECK(parse_bytes("100000") == 100'000);
  for (const char* text : {"8GiB", "8G", "8g", "8 GiB", "8GB", "8gib", "8192m", "8192MiB"}) {
    INFO(text);
    CHECK(parse_bytes(text) == std::uint64_t{8} << 30);
  }
  CHECK(parse_bytes("1.5k") == 1536);
  CHECK(parse_bytes("2.1GiB") == 2'254'857'830);
  CHECK(parse_bytes("0.1MB") == 104'857);
  CHECK(parse_bytes("2TiB") == std::uint64_t{2} << 40);
}

TEST_CASE("quantity: what is no amount of memory") {
  for (const char* text : {"", "GiB", "-1", "8X", "8GiBB", "0.3", "nan", "inf", "1e3", "99999999999TiB", "8 8", " 8"}) {
    INFO(text);
    CHECK_FALSE(parse_bytes(text));
  }
}

TEST_CASE("quantity: shares") {
  CHECK(parse_percent("50%") == 50u);
  CHECK(parse_percent("50") == 50u);
  CHECK(parse_percent("0") == 0u);
  CHECK(parse_percent("100%") == 100u);
  CHECK(parse_percent("250%", 800) == 250u);
  for (const char* text : {"", "%", "101%", "-5%", "1.5", "50%%", "50 per cent"}) {
    INFO(text);
    CHECK_FALSE(parse_percent(text));
  }
}

TEST_CASE("quantity: times") {
  using std::chrono::seconds;
  CHECK(parse_duration("90") == seconds(90));
  CHECK(parse_duration("90s") == seconds(90));
  CHECK(parse_duration("10min") == seconds(600));
  CHECK(parse_duration("1.5h") == seconds(5400));
  CHECK(parse_duration("7d") == seconds(604'800));
  CHECK(parse_duration("0.2s") == seconds(1));  // never shorter than asked
  for (const char* text : {"", "s", "-1", "5 weeks", "1e300h"}) {
    INFO(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("quantity: what is shown of bytes") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(bytes_text(std::uint64_t{8} << 30) == "8.0 GiB");
  CHECK(bytes_text(std::uint64_t{5000} << 40) == "5000.0 TiB");
}

TEST_CASE("text stays as it is, what steers a terminal does not") {
  CHECK(printable("Grüße von host-1: 5 GiB") == "Grüße von host-1: 5 GiB");
  CHECK(printable("a\x1b[31mb\n\r\tc\x7f") == "a?[31mb???c?");
  CHECK(printable("a\xc2\x9b"
                  "31m") == "a??31m");
  CHECK(printable("\xc2") == "\xc2");
  CHECK(printable("") == "");
}

TEST_CASE("text is cut where it gets long") {
  CHECK(printable(std::string(500, 'x')) == std::string(128, 'x'));
  CHECK(printable("12345", 3) == "123");
}
