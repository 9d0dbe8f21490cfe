#pragma once
// Physical memory of the session's devices behind its window, and what it is charged for.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "driver_table.h"
#include "server/quota/ledger.h"

namespace fargpu::server {

/// The session's part of each device. Memory from cuMemCreate is charged from before it is made until it is really
/// gone: released and mapped nowhere. Used by the executor, or by another thread while no call that uses it is
/// executed.
class DeviceMemory {
 public:
  static constexpr std::uint64_t granularity = 2u << 20;

  DeviceMemory(DriverTable& driver, Ledger& ledger, std::uint64_t window_base, std::uint64_t window_bytes);
  ~DeviceMemory();

  /// Puts new memory of the device at an address of the window.
  CUresult back(std::uint64_t address, std::uint64_t bytes, int device);
  /// Memory in two steps, for callers that have something to do with it before the session sees it: `make` makes it,
  /// `place` puts it at its address.
  CUresult make(std::uint64_t address, std::uint64_t bytes, int device, CUmemGenericAllocationHandle& handle);
  CUresult place(std::uint64_t address, std::uint64_t bytes, int device, CUmemGenericAllocationHandle handle);
  /// Makes memory without an address (cuMemCreate).
  CUresult create(std::uint64_t bytes, const CUmemAllocationProp& prop, CUmemGenericAllocationHandle& handle);
  CUresult release(CUmemGenericAllocationHandle handle);
  /// Memory of another session on this device, as one of our own (cuMemImportFromShareableHandle).
  CUresult import(int descriptor, int device, std::uint64_t bytes, CUmemGenericAllocationHandle& handle);
  /// A descriptor for other processes, which the caller owns.
  CUresult export_to(CUmemGenericAllocationHandle handle, int& descriptor);
  /// What stands for memory while the session has it. `handle` must be one that `knows`.
  const std::shared_ptr<Charge>& charge_of(CUmemGenericAllocationHandle handle) const {
    return handles_.at(handle).charge;
  }
  bool knows(CUmemGenericAllocationHandle handle) const { return handles_.contains(handle); }
  /// Puts such memory at an address; access is set separately. Tells the device it lies on.
  CUresult map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, CUmemGenericAllocationHandle handle,
               int& device);
  /// Gives access to a mapping of another session's memory: to the memory's own device, to those that use what `back`
  /// puts there, and to `for_device`.
  CUresult open(std::uint64_t address, int for_device);
  /// Whether device `from` may use what `back` and `open` put, and have put, on device `to`.
  CUresult set_peer_access(int from, int to, bool allowed);
  CUresult set_access(std::uint64_t address, std::uint64_t bytes, int device, bool allowed);
  /// The device that memory of the window lies on; -1 where there is none of ours.
  int device_of(std::uint64_t address) const;
  /// Takes memory of either kind away from an address where it was put, or several that follow each other.
  CUresult unmap(std::uint64_t address, std::uint64_t bytes);
  /// One more hold on the memory mapped here (cuMemRetainAllocationHandle); NOT_SUPPORTED if that has become several.
  CUresult retain(std::uint64_t address, CUmemGenericAllocationHandle& handle);

  /// Memory that can leave its device and come back to its addresses: nobody but the session has it.
  struct Piece {
    /// An address of it, and who has access there.
    struct Place {
      std::uint64_t address = 0;
      std::vector<CUmemAccessDesc> access;
    };
    std::uint64_t address = 0;  ///< where its device reads and writes it
    std::uint64_t bytes = 0;
    int device = 0;
    std::vector<Place> places;  ///< all of them; their access is known while it is away
    CUmemAllocationProp properties{};
    /// Under which it is known here; another one each time that it has left or come back. 0 where the program has none.
    CUmemGenericAllocationHandle handle = 0;
    bool away = false;
  };
  std::vector<Piece> pieces() const;
  /// Gives the piece's memory back to the device, with its contents. It stays charged. Until it comes back nothing may
  /// use its addresses and its handle.
  CUresult leave(Piece& piece);
  /// New memory, whose contents are anything, at the piece's addresses.
  CUresult come_back(Piece& piece);
  /// A piece that is away becomes several of so many bytes at most, unless the program knows it by a handle, or has
  /// mapped it itself. Each is memory of its own from now on.
  std::vector<Piece> divide(const Piece& piece, std::uint64_t bytes_max);
  /// Bytes that the driver had no room for in the last call of `create`, on that device; then nothing.
  struct Shortage {
    int device = 0;
    std::uint64_t bytes = 0;
  };
  std::optional<Shortage> take_shortage() { return std::exchange(shortage_, std::nullopt); }

  /// A range outside of the window that belongs to the session: a module's variable, a mapped host block.
  void add_foreign(std::uint64_t address, std::uint64_t bytes) { foreign_[address] = bytes; }
  void remove_foreign(std::uint64_t address) { foreign_.erase(address); }

  /// Whether the session may use all of [address, address + bytes) in a copy or memset.
  bool holds(std::uint64_t address, std::uint64_t bytes) const;

 private:
  static constexpr unsigned holds_max = 1u << 14;  // of one allocation
  struct Mapping {
    std::uint64_t bytes = 0;
    std::shared_ptr<Charge> allocation;
    bool backed = false;   // by `back`; else mapped by the program, which says what has access
    bool divided = false;  // a part of what was one
    bool away = false;
    std::optional<int> opened_for;  // the device of an `open`
  };
  /// One reference of the driver's, however often the session holds it.
  struct Held {
    std::shared_ptr<Charge> charge;
    unsigned holds = 0;
    bool away = false;
  };
  static CUmemAllocationProp own_memory(int device);
  bool at_hand(const Mapping& mapping, std::uint64_t address) const;
  CUresult note(Piece& piece, CUmemGenericAllocationHandle handle) const;
  CUresult put(const Piece& piece, std::size_t places, CUmemGenericAllocationHandle handle);
  CUresult take(const Piece& piece, CUmemGenericAllocationHandle handle);
  void rename(Piece& piece, CUmemGenericAllocationHandle handle);
  CUresult give_access(std::uint64_t address, std::uint64_t bytes, int device);
  bool in_window(std::uint64_t address, std::uint64_t bytes) const;
  bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
  CUresult hold(CUmemGenericAllocationHandle handle, std::shared_ptr<Charge> charge);

  DriverTable& driver_;
  Ledger& ledger_;
  const std::uint64_t window_base_;
  const std::uint64_t window_bytes_;
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<CUmemGenericAllocationHandle, Held> handles_;
  // For memory that is away: the driver may give its old handle to other memory, but none with this bit.
  CUmemGenericAllocationHandle last_handle_away_ = CUmemGenericAllocationHandle{1} << 63;
  std::map<std::uint64_t, std::uint64_t> foreign_;
  std::set<std::pair<int, int>> peers_;  // the second's memory is used by the first
  std::optional<Shortage> shortage_;
};

}  // namespace fargpu::server
