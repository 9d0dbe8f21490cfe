#pragma once
// Whether this machine reaches the hosts of a pool, to which its registry may send a job.

#include <cstddef>
#include <string>
#include <vector>

#include "pool_members.h"

namespace fargpu::client::cli {

struct Reach {
  struct Silent {
    PoolMember member;
    std::string why, repair;
  };
  std::vector<Silent> silent;
  std::size_t tried = 0;
};

/// Says hello to each of them, to many at once; after ten seconds to no further ones.
Reach reach(const std::vector<PoolMember>& members);

}  // namespace fargpu::client::cli
