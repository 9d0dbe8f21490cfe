#pragma once
// Every maximum of the protocol, in one place. Both sides check what they receive against these; a peer that exceeds
// one has broken the protocol and loses its session.

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace fargpu::limits {

inline constexpr std::size_t message_bytes_max = 8u << 20;        ///< one Cap'n Proto message
inline constexpr std::size_t bulk_bytes_max = 4u << 20;           ///< bulk bytes that follow one frame
inline constexpr std::size_t open_message_bytes_max = 64u << 10;  ///< before a peer is known
inline constexpr int message_nesting_max = 16;
inline constexpr std::size_t compressed_bytes_min = 32u << 10;  ///< contents that are worth being compressed
inline constexpr std::size_t compressed_prefix_bytes = 8;       ///< ahead of what they became

inline constexpr unsigned lanes_max = 16;                  ///< bulk lanes of a session
inline constexpr std::size_t lane_name_bytes = 16;         ///< of their key, shown in the clear where TLS is spoken
inline constexpr std::size_t lane_chunk_bytes = 1u << 20;  ///< what one lane carries at a time, of a large transfer
inline constexpr std::size_t lane_small_chunk_bytes = 256u << 10;  ///< of a small one
inline constexpr std::uint64_t lane_large_bytes = 4u << 20;        ///< transfers from here on are large
/// Smaller copies that are waited for are not worth being divided.
inline constexpr std::uint64_t lane_copy_bytes_min = 1u << 20;
/// Smaller ones of which several may be on their way take no lane.
inline constexpr std::uint64_t lane_row_bytes_min = 128u << 10;
/// Chunks of a large transfer that are sent before the worker has asked for them.
inline constexpr std::uint32_t lane_early_chunks = 24;
inline constexpr std::uint32_t lane_early_small_chunks = 64;  ///< of small ones
/// Words about contents that the worker has not answered, or whose bytes it still waits for, over all lanes.
inline constexpr std::size_t content_words_max = 512;
inline constexpr std::size_t lane_gaps_max = 4096;  ///< chunks that have overtaken one another, over all lanes

/// What was sent and may have to be sent again, by the session's own connection and by each lane. Client and worker
/// hold as much.
inline constexpr std::size_t resume_log_bytes = 4u << 20;
inline constexpr std::size_t resume_lane_log_bytes = 2u << 20;
inline constexpr std::size_t resume_secret_bytes = 32;
/// A connection that was closed in order is waited for no longer than this: it is how the end of a process shows.
inline constexpr std::chrono::milliseconds resume_ended_max{5000};

/// Links of a session's worker with those of other hosts, at a time and in all; lanes of each; what the two workers may
/// have told each other that no call has asked for yet, and what one has to say that the other does not take.
inline constexpr std::size_t links_max = 16;
inline constexpr std::size_t links_ever_max = 64;
inline constexpr std::uint32_t link_lanes = 4;
inline constexpr std::size_t link_words_max = 1u << 16;
inline constexpr std::size_t link_said_bytes_max = 16u << 20;
/// Chunks under way on a link, of large transfers and of small ones.
inline constexpr std::uint64_t link_chunks = 24, link_small_chunks = 32;

inline constexpr std::size_t image_bytes_max = 1u << 30;  ///< one cubin, fatbin or PTX text
/// Libraries that are loaded before the program asks: bytes of the request that is answered and of the answer, how many
/// come with one, and how many wait in all.
inline constexpr std::size_t ahead_request_bytes_max = 1024;
inline constexpr std::size_t ahead_reply_bytes_max = 256u << 10;
inline constexpr std::size_t ahead_loads_max = 8;
inline constexpr std::size_t ahead_waiting_max = 16;
inline constexpr std::size_t kernel_parameter_bytes_max = 32764;  ///< CUDA Programming Guide, kernel parameters
inline constexpr std::uint32_t array_elements_max = 1u << 20;     ///< elements in one list argument
inline constexpr std::uint32_t devices_max = 64;

/// Work items (launches, copies, memsets, records) that a worker keeps pending in the driver on one stream; it holds
/// back what is more. The driver blocks the submitting thread, and with it all other calls, when 1,021 launches are
/// pending (measured on an H200).
inline constexpr std::uint32_t stream_pending_max = 928;
/// Work items on one stream that a client sends before it hears of their completion, where messages take no time.
inline constexpr std::uint32_t stream_credit = 768;
/// How many more, for each microsecond of a round trip, so that those under way do not count; no driver takes work
/// faster.
inline constexpr double stream_credit_per_us = 0.5;
inline constexpr std::uint32_t stream_credit_max = 16384;
/// Number of items after which a client asks to hear of their completion; a worker that is not asked looks a little
/// later.
inline constexpr std::uint32_t stream_fence_interval = 128;

/// Bytes of calls for which a worker keeps room, so that none that must wait is refused: what it grants, and the least
/// with which a session begins, where the host's memory is short.
inline constexpr std::uint64_t credit_bytes = 32u << 20;
inline constexpr std::uint64_t credit_bytes_min = 64u << 10;
inline constexpr std::uint64_t credit_call_bytes = 512;  ///< that a call takes besides its message and its bulk bytes

/// Work held back, waits for it, completions, and answers that the client owes, together. With more a worker ends the
/// session; no program comes near.
inline constexpr std::size_t waits_max = 1u << 20;

inline constexpr std::size_t host_read_bytes_max = 64u << 20;  ///< of a mapped host block, in one answer

/// Each ring of a channel in shared memory, as workers make them.
inline constexpr std::size_t ring_bytes = 4u << 20;
inline constexpr std::size_t ring_bytes_min = 4096;
inline constexpr std::size_t ring_bytes_max = 64u << 20;
/// Each ring of a channel by RDMA, which is memory that the device has for itself.
inline constexpr std::size_t rdma_ring_bytes = 2u << 20;
/// What the channels of a session may take of that: of each two rings at each end.
inline constexpr std::size_t rdma_locked_bytes = 2 * (lanes_max + 1) * rdma_ring_bytes;
inline constexpr std::size_t descriptors_max = 4;  ///< that have been passed and that nobody has taken yet

inline constexpr std::uint32_t spares_max = 8;  ///< pieces of memory that come with one that is asked for

/// Memory and events that one session shares with others at a time. PyTorch keeps up to a thousand events for that.
inline constexpr std::size_t shares_max = 4096;

inline constexpr std::chrono::milliseconds connect_timeout{5000};  ///< also for the broker's answers that take no work
/// In which the ends of a channel by RDMA must meet, and in which one hears from the other about it, which may be
/// opening its devices.
inline constexpr std::chrono::milliseconds rdma_meeting_timeout{5000};
inline constexpr std::chrono::milliseconds rdma_timeout{15000};
inline constexpr std::chrono::milliseconds lease_timeout{75000};  ///< a lease may wait for a driver to be initialised
/// Longest that a client may wait for what others hold.
inline constexpr std::chrono::seconds lease_wait_max{7 * 86'400};
inline constexpr std::chrono::seconds worker_start_max{
    60};  ///< longest such wait at a host: clients wait a little longer

/// Silence after which a session's peer is dead. The host decides (`silence_seconds` of fargpud); this where nobody
/// has.
inline constexpr std::chrono::milliseconds silence_timeout{30000};
inline constexpr int heartbeats_per_silence = 6;  ///< so many are sent before silence is taken for death

}  // namespace fargpu::limits
