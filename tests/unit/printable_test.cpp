// What other machines say, made fit for terminals and logs.

#include "protocol/printable.h"

#include <catch2/catch.hpp>

using fargpu::printable;

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
