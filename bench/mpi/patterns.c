/* patterns.c - many transfers by each rank, in one of the orders that programs have, independent or collective.
 *
 *     mpirun -n N patterns --file FILE --order sequential|random|strided --transfer BYTES [--total 64M]
 *            [--segment 0] [--sparse 1] [--collective 0] [--repeats 5] [--hint name=value,...]
 *
 * sequential: one after another in a region of the rank's own; random: there in random order; strided: the ranks'
 * in turn. --segment: a transfer is made of segments through a view, the ranks' in turn, and between two
 * segments of the file --sparse - 1 remain unwritten. --total: bytes of one rank. */
#include "common.h"

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    const char *name = option(argc, argv, "file", NULL), *order = option(argc, argv, "order", "sequential");
    const char *hints = option(argc, argv, "hint", "");
    long long transfer = bytes_of(option(argc, argv, "transfer", "1M")), total = bytes_of(option(argc, argv, "total", "64M"));
    long long segment = bytes_of(option(argc, argv, "segment", "0")), sparse = atoll(option(argc, argv, "sparse", "1"));
    int repeats = atoi(option(argc, argv, "repeats", "5")), collective = atoi(option(argc, argv, "collective", "0"));
    if (!name || transfer <= 0 || transfer > 1 << 30) stop("usage: patterns --file FILE ...");
    if (segment) transfer = transfer / segment * segment;
    long long count = total / transfer > 0 ? total / transfer : 1;
    total = count * transfer;
    long long *places = malloc(sizeof *places * (size_t)count);
    for (long long i = 0; i < count; i++) places[i] = i;
    uint64_t state = 88172645463325252u + (uint64_t)rank;
    for (long long i = count - 1; strcmp(order, "random") == 0 && i > 0; i--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        long long k = (long long)(state % (uint64_t)(i + 1)), other = places[i];
        places[i] = places[k], places[k] = other;
    }
    for (long long i = 0; i < count; i++) {
        if (segment) places[i] *= transfer; /* in the view */
        else if (strcmp(order, "strided") == 0) places[i] = (places[i] * ranks + rank) * transfer;
        else places[i] = (rank * count + places[i]) * transfer;
    }
    /* All that a rank writes, so that filling it costs no time while the clock runs. */
    unsigned char *data = malloc((size_t)total);
    MPI_Info info = hints_of(hints);
    for (int turn = 0; turn < repeats + 1; turn++) {
        double times[2];
        for (int reading = 0; reading < 2; reading++) {
            MPI_File file;
            for (long long i = 0; i < count; i++) {
                if (reading) memset(data + i * transfer, 0, (size_t)transfer);
                else fill(data + i * transfer, places[i] + (segment ? rank * 1000003LL * 8 : 0), transfer, turn);
            }
            MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
            if (segment) {
                MPI_Datatype bytes, view;
                MPI_Type_contiguous((int)segment, MPI_BYTE, &bytes);
                MPI_Type_create_resized(bytes, 0, (MPI_Aint)(segment * sparse * ranks), &view);
                MPI_Type_commit(&view);
                MUST(MPI_File_set_view(file, rank * segment * sparse, MPI_BYTE, view, "native", info));
                MPI_Type_free(&bytes);
                MPI_Type_free(&view);
            }
            double t = start();
            for (long long i = 0; i < count; i++) {
                unsigned char *at = data + i * transfer;
                if (reading && collective) MUST(MPI_File_read_at_all(file, places[i], at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
                else if (reading) MUST(MPI_File_read_at(file, places[i], at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
                else if (collective) MUST(MPI_File_write_at_all(file, places[i], at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
                else MUST(MPI_File_write_at(file, places[i], at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
            }
            times[reading] = took(t);
            MUST(MPI_File_close(&file));
            for (long long i = 0; reading && i < count; i++) {
                verify(data + i * transfer, places[i] + (segment ? rank * 1000003LL * 8 : 0), transfer, turn, "read");
            }
        }
        if (turn == 0 || rank != 0) continue;
        for (int reading = 0; reading < 2; reading++) {
            printf("{\"bench\": \"pattern\", \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f}\n", reading ? "read" : "write", ranks,
                   (double)total * ranks / times[reading]);
        }
    }
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
    free(data), free(places);
    MPI_Finalize();
    return 0;
}
