/* mpi-io-test.c - each rank writes one contiguous block, then reads it back.
 *
 *     mpirun -n N mpi-io-test --file FILE [--block 8M] [--piece 0] [--repeats 5] [--collective 0]
 *
 * --piece: the block is dealt out in pieces of so many bytes, the ranks' in turn (0: in one). */
#include "common.h"

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    const char *name = option(argc, argv, "file", NULL);
    long long block = bytes_of(option(argc, argv, "block", "8M")), piece = bytes_of(option(argc, argv, "piece", "0"));
    int repeats = atoi(option(argc, argv, "repeats", "5")), collective = atoi(option(argc, argv, "collective", "0"));
    if (!name || block <= 0 || block > 1 << 30) stop("usage: mpi-io-test --file FILE ...");
    if (piece == 0) piece = block;
    block = block / piece * piece;
    unsigned char *data = malloc((size_t)block);
    for (int turn = 0; turn < repeats + 1; turn++) {
        double times[6];
        for (int reading = 0; reading < 2; reading++) {
            MPI_File file;
            for (long long at = 0; at < block; at += piece) {
                long long offset = (at * ranks) + rank * piece;
                if (reading) memset(data + at, 0, (size_t)piece);
                else fill(data + at, offset, piece, turn);
            }
            double t = start();
            MUST(MPI_File_open(MPI_COMM_WORLD, name, reading ? MPI_MODE_RDONLY : MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file));
            times[3 * reading] = took(t);
            t = start();
            for (long long at = 0; at < block; at += piece) {
                long long offset = at * ranks + rank * piece;
                if (reading && collective) MUST(MPI_File_read_at_all(file, offset, data + at, (int)piece, MPI_BYTE, MPI_STATUS_IGNORE));
                else if (reading) MUST(MPI_File_read_at(file, offset, data + at, (int)piece, MPI_BYTE, MPI_STATUS_IGNORE));
                else if (collective) MUST(MPI_File_write_at_all(file, offset, data + at, (int)piece, MPI_BYTE, MPI_STATUS_IGNORE));
                else MUST(MPI_File_write_at(file, offset, data + at, (int)piece, MPI_BYTE, MPI_STATUS_IGNORE));
            }
            times[3 * reading + 1] = took(t);
            t = start();
            MUST(MPI_File_close(&file));
            times[3 * reading + 2] = took(t);
            for (long long at = 0; reading && at < block; at += piece) verify(data + at, at * ranks + rank * piece, piece, turn, "read");
        }
        /* The first turn warms up. */
        if (turn == 0 || rank != 0) continue;
        double all = (double)block * ranks;
        for (int reading = 0; reading < 2; reading++) {
            double *t = times + 3 * reading;
            printf("{\"bench\": \"io\", \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f, \"rate_with_open\": %.0f, \"open_s\": %.6f, \"close_s\": %.6f}\n",
                   reading ? "read" : "write", ranks, all / t[1], all / (t[0] + t[1] + t[2]), t[0], t[2]);
        }
    }
    free(data);
    MPI_Finalize();
    return 0;
}
