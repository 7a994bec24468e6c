// Decode attention over a KV cache that is split over the ranks of an MPI communicator: target kvroof::mpi, built with
// -DKVROOF_BUILD_MPI=ON. Every rank holds the rows of a range of whole segments (512 positions) and reads them alone;
// the root joins their partial results by the fixed tree of the one-process call: the same bits, wherever the cuts are.
//
// Which rank holds what: rank r has segments [begin_r, end_r) with begin_0 = 0 and begin_r = end_(r-1); empty ranges
// are fine (more ranks than segments). A cache that grows: call mpi_segments once with the largest number of positions
// planned, and let the rank whose range holds position p append row p; no row ever moves. Ranks before the tail then
// work on full ranges, those after it wait until it reaches them. Where decode starts at length L and stops far before
// the plan's end, balance matters more: plan with L and give the last rank everything after (mpi_segments, then the
// last rank's end raised). With several sequences, plan with the longest.
#pragma once

#include <mpi.h>

#include "kernels/kernels.hpp"

namespace kvroof {

struct MpiSegments {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Nearly equal shares of the segments of `positions` rows, in rank order.
MpiSegments mpi_segments(std::int64_t positions, int rank, int ranks);

// The workspace of decode_attention_mpi, 64-byte aligned. The root's holds a block of partials from every rank.
std::size_t decode_attention_mpi_bytes(const AttentionArgs& args, int threads, int rank, int ranks, int root = 0);

// Collective. args: segment_begin and segment_end are this rank's range, the views list its rows (more are not read).
// Shape, options, q, n, end_position and storage are the same on every rank: the caller broadcasts q (one MPI_Bcast) as
// it owns its layout; a difference is found and refused. out and lse are written on the root only; out is not null
// elsewhere. Ranks may run different instruction sets and thread counts in reproducible mode. Same byte order assumed.
//
// Errors are agreed on before any partials are computed or sent: one rank's bad arguments throw on every rank the same
// Error, its text naming the lowest rank that failed. Only errors of MPI itself, or a rank that dies, go the way of the
// communicator's error handler (by default the job is aborted).
void decode_attention_mpi(const AttentionArgs& args, std::span<std::byte> workspace, int threads, Isa isa,
                          MPI_Comm comm, int root = 0);

}  // namespace kvroof
