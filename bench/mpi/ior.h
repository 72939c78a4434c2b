/* ior.h - what IOR does, through any library that has parallel files of arrays: each rank writes its part of one
 * array of 64-bit integers in transfers, then reads it back; open, I/O and close apart. Of the I/O it is counted what
 * the library asks of MPI-IO: the rest of the time is its own, to copy and to look up.
 *
 *     mpirun -n N PROGRAM --file FILE [--transfer 1M] [--total 64M] [--collective 0|1|2|3|all] [--chunk 0] [--repeats 5]
 *
 * --total: bytes of one rank. --chunk: the array is chunked, so many bytes each. --collective 2: independent, but
 * after a reduction that keeps the ranks in step, as collective calls of the libraries make one; 3: by MPI-IO alone,
 * independent, to a file of its own; all: the four in turns, as cases. */
#ifndef IOR_H
#define IOR_H

#include "common.h"

/* One library. Each function ends the program if it fails. Counts are of integers. */
struct library {
    const char *bench; /* as the lines of output have it */
    void (*make)(const char *name, size_t whole, size_t chunk);
    void (*open)(const char *name);
    void (*set_collective)(int collective); /* of the file that is open */
    void (*move)(int reading, size_t at, size_t count, long long *data);
    void (*close)(void);
};

/* The seconds of one way; those of `asked` were spent in MPI-IO, to move so many bytes of this rank. */
struct ior_times {
    double open, move, close, asked;
    long long bytes;
};

/* A rank's part of the array. */
struct ior_part {
    size_t first, transfer, count, whole; /* integers, but count: transfers */
    unsigned char *data;
};

enum { MODE_INDEPENDENT, MODE_COLLECTIVE, MODE_IN_STEP, MODE_ALONE, modes_all };

/* What this rank has asked of MPI-IO so far. */
static double asked_s;
static long long asked_bytes;

static int asked(double since, int count, MPI_Datatype type, int error)
{
    MPI_Count size;
    PMPI_Type_size_x(type, &size);
    asked_s += PMPI_Wtime() - since;
    asked_bytes += count * size;
    return error;
}

/* The library calls these in place of the MPI's. */
#define COUNTED(name, memory)                                                                                               \
    int MPI_File_##name(MPI_File file, MPI_Offset at, memory data, int count, MPI_Datatype type, MPI_Status *status)         \
    {                                                                                                                        \
        double since = PMPI_Wtime();                                                                                         \
        return asked(since, count, type, PMPI_File_##name(file, at, data, count, type, status));                             \
    }
COUNTED(read_at, void *)
COUNTED(read_at_all, void *)
COUNTED(write_at, const void *)
COUNTED(write_at_all, const void *)

/* No library: the same transfers by MPI-IO. */
static MPI_File alone;

static void alone_make(const char *name, size_t whole, size_t chunk)
{
    (void)whole, (void)chunk;
    MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &alone));
    MUST(MPI_File_set_size(alone, 0));
}

static void alone_open(const char *name)
{
    MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &alone));
}

static void alone_set_collective(int collective)
{
    (void)collective;
}

static void alone_move(int reading, size_t at, size_t count, long long *data)
{
    MPI_Offset offset = (MPI_Offset)at * 8;
    int bytes = (int)count * 8;
    if (reading) MUST(MPI_File_read_at(alone, offset, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    else MUST(MPI_File_write_at(alone, offset, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
}

static void alone_close(void)
{
    MUST(MPI_File_close(&alone));
}

static struct ior_times ior_way(const struct library *library, const char *name, size_t chunk, const struct ior_part *part, int mode, int reading)
{
    struct ior_times times;
    double t = start();
    if (reading) library->open(name);
    else library->make(name, part->whole, chunk);
    library->set_collective(mode == MODE_COLLECTIVE);
    times.open = took(t);
    t = start();
    double asked_before = asked_s;
    long long bytes_before = asked_bytes;
    for (size_t i = 0; i < part->count; i++) {
        int same;
        if (mode == MODE_IN_STEP) MPI_Allreduce(&mode, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        library->move(reading, part->first + i * part->transfer, part->transfer, (long long *)(void *)part->data + i * part->transfer);
    }
    times.move = took(t);
    times.asked = most(asked_s - asked_before);
    times.bytes = asked_bytes - bytes_before;
    t = start();
    library->close();
    times.close = took(t);
    return times;
}

static int ior(int argc, char **argv, const struct library *library)
{
    begin(&argc, &argv);
    const char *name = option(argc, argv, "file", NULL), *modes = option(argc, argv, "collective", "0");
    size_t transfer = (size_t)bytes_of(option(argc, argv, "transfer", "1M")) / 8, total = (size_t)bytes_of(option(argc, argv, "total", "64M")) / 8;
    size_t chunk = (size_t)bytes_of(option(argc, argv, "chunk", "0")) / 8;
    int repeats = atoi(option(argc, argv, "repeats", "5")), kinds = strcmp(modes, "all") == 0 ? modes_all : 1;
    if (!name || transfer == 0) stop("usage: --file FILE ...");
    struct ior_part part = {.transfer = transfer, .count = total / transfer > 0 ? total / transfer : 1};
    size_t mine = part.count * transfer;
    const struct library no_library = {library->bench, alone_make, alone_open, alone_set_collective, alone_move, alone_close};
    char beside[1000];
    snprintf(beside, sizeof beside, "%s.alone", name);
    part.first = (size_t)rank * mine;
    part.whole = mine * (size_t)ranks;
    part.data = malloc(mine * 8);
    if (!part.data) stop("no memory");
    long long order[modes_all];
    for (int i = 0; i < modes_all; i++) order[i] = i;
    for (int round = 0; round < (repeats + 1) * kinds; round++) {
        int turn = round / kinds;
        if (round % kinds == 0) shuffle(order, modes_all, &turns_state);
        int mode = kinds > 1 ? (int)order[round % kinds] : atoi(modes);
        for (int reading = 0; reading < 2; reading++) {
            if (reading) memset(part.data, 0, mine * 8);
            else fill(part.data, (long long)part.first * 8, (long long)mine * 8, turn);
            int is_alone = mode == MODE_ALONE;
            struct ior_times t = ior_way(is_alone ? &no_library : library, is_alone ? beside : name, chunk, &part, mode, reading);
            if (t.bytes < (long long)mine * 8) stop("the library moves bytes by calls that are not counted");
            if (reading) verify(part.data, (long long)part.first * 8, (long long)mine * 8, turn, "read");
            /* The first turn warms up. */
            if (turn == 0 || rank != 0) continue;
            double bytes = (double)part.whole * 8;
            printf("{\"bench\": \"%s\", \"case\": %d, \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f, \"rate_with_open\": %.0f, \"rate_in_calls\": %.0f, \"open_s\": %.6f, \"io_s\": %.6f, \"close_s\": %.6f}\n",
                   library->bench, kinds > 1 ? mode : 0, reading ? "read" : "write", ranks, bytes / t.move, bytes / (t.open + t.move + t.close),
                   (double)t.bytes * ranks / t.asked, t.open, t.move, t.close);
        }
    }
    free(part.data);
    MPI_Finalize();
    return 0;
}

#endif
