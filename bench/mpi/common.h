/* common.h - what the MPI benchmarks share: options, clocks, bytes that tell where they belong, JSON.
 *
 * Each prints one line of JSON for a result, by rank 0. Times are those of the slowest rank, from a common
 * beginning. What is read is compared after the clock has stopped, and what was written is read back. */
#ifndef COMMON_H
#define COMMON_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void begin(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

_Noreturn static void stop(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static inline void must(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING], all[MPI_MAX_ERROR_STRING + 100];
    int length;
    if (error == MPI_SUCCESS) return;
    MPI_Error_string(error, text, &length);
    snprintf(all, sizeof all, "%s: %s", what, text);
    stop(all);
}
#define MUST(call) must(call, #call)

/* --name VALUE anywhere on the command line. */
static inline const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0) return argv[i + 1];
    }
    return otherwise;
}

/* Bytes, with K, M or G. */
static inline long long bytes_of(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end == 'K') value <<= 10;
    if (*end == 'M') value <<= 20;
    if (*end == 'G') value <<= 30;
    return value;
}

/* Puts things into another order. The state says which, is not 0, and goes on. */
static inline void shuffle(long long *things, long long count, uint64_t *state)
{
    for (long long i = count - 1; i > 0; i--) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        long long k = (long long)(*state % (uint64_t)(i + 1)), other = things[i];
        things[i] = things[k], things[k] = other;
    }
}

/* Cases in turns: 0, 1, ... before the first turn, and for each turn to be shuffled with this, the same on all ranks. A case
 * pays for what the one before it has left behind, in the caches and among the free pages: that is not to be always
 * the same one. */
static uint64_t turns_state = 88172645463325252u;

/* From --hint name=value,name=value. */
static inline MPI_Info hints_of(const char *text)
{
    MPI_Info info = MPI_INFO_NULL;
    char copy[1000];
    if (!*text) return info;
    MPI_Info_create(&info);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *next, *hint = copy; hint; hint = next) {
        next = strchr(hint, ',');
        if (next) *next++ = 0;
        char *value = strchr(hint, '=');
        if (!value) stop("a hint without =");
        *value++ = 0;
        MPI_Info_set(info, hint, value);
    }
    return info;
}

/* Everybody begins now. */
static inline double start(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

/* Of all ranks'. */
static inline double most(double mine)
{
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

/* What the slowest rank took. */
static inline double took(double since)
{
    return most(MPI_Wtime() - since);
}

/* The eight bytes that belong at an offset which is a multiple of eight. */
static inline uint64_t stamp(long long offset, int turn)
{
    return ((uint64_t)offset + 8 * (uint64_t)turn + 1) * 0x9e3779b97f4a7c15u;
}

/* Bytes from any offset on: byte i is that of its place, so that transfers need not be aligned. */
static inline void fill(unsigned char *bytes, long long offset, long long length, int turn)
{
    for (long long i = 0; i < length; i++) {
        uint64_t word = stamp((offset + i) & ~7LL, turn);
        if (((offset + i) & 7) == 0 && length - i >= 8) {
            memcpy(bytes + i, &word, 8);
            i += 7;
        } else {
            bytes[i] = (unsigned char)(word >> 8 * ((offset + i) & 7));
        }
    }
}

static inline void verify(const unsigned char *bytes, long long offset, long long length, int turn, const char *what)
{
    char text[200];
    unsigned char expected[4096];
    for (long long at = 0; at < length; at += (long long)sizeof expected) {
        long long part = length - at < (long long)sizeof expected ? length - at : (long long)sizeof expected;
        fill(expected, offset + at, part, turn);
        if (memcmp(bytes + at, expected, (size_t)part) == 0) continue;
        snprintf(text, sizeof text, "%s: wrong bytes at or after %lld", what, offset + at);
        stop(text);
    }
}

#endif
