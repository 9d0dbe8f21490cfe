#include "findings.h"

#include <iostream>

namespace fargpu::client::cli {

void Findings::good(const std::string& what) { std::cout << "  ok    " << what << "\n"; }

void Findings::bad(const std::string& what, const std::string& repair) {
  std::cout << "  FAIL  " << what << "\n        " << repair << "\n";
  ++failures_;
}

void Findings::note(const std::string& what) { std::cout << "  note  " << what << "\n"; }

}  // namespace fargpu::client::cli
