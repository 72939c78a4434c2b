/* mpi-md-test.c - collective calls on files as a whole: their times, and the metadata service's requests for each.
 *
 *     mpirun -n N mpi-md-test --file PREFIX [--calls 20] [--status COMMAND]
 *
 * --status: a command that prints the pool's counters (weir status --json), which rank 0 asks between the parts.
 * Requests that no call waits for are told apart: each rank renews its lease every ten seconds, and what would
 * go with the next request, as the end of a truncation, goes by itself where none comes within 100 ms. */
#include "common.h"

enum { calls_max = 1000 };

static const char *status;

/* Requests to the metadata service, and those of them that no call waits for. */
struct requests {
    long long all, unawaited;
};

/* The sum of all servers' counters of this name. */
static long long sum_of(const char *text, const char *name)
{
    char key[64];
    long long sum = 0;
    int length = snprintf(key, sizeof key, "\"%s\":", name);
    for (const char *at = text; (at = strstr(at, key)); at++) sum += atoll(at + length);
    return sum;
}

static struct requests counted(void)
{
    static char text[1 << 20];
    if (!status || rank != 0) return (struct requests){0, 0};
    FILE *stream = popen(status, "r");
    if (!stream) stop("the counters cannot be asked for");
    size_t length = fread(text, 1, sizeof text - 1, stream);
    text[length] = 0;
    if (pclose(stream) != 0) stop("the counters' command failed");
    return (struct requests){sum_of(text, "metadata_requests"), sum_of(text, "metadata_unawaited")};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    enum op { op_create, op_close_new, op_open, op_set_view, op_resize, op_preallocate, op_get_size, op_close, op_delete, ops };
    static const char *const names[ops] = {"create", "close (new)", "open", "set_view", "set_size", "preallocate", "get_size", "close", "delete"};
    static MPI_File files[calls_max];
    static double times[calls_max];
    char name[1000];
    begin(&argc, &argv);
    const char *prefix = option(argc, argv, "file", NULL);
    int calls = atoi(option(argc, argv, "calls", "20"));
    status = option(argc, argv, "status", NULL);
    if (!prefix || calls < 1 || calls > calls_max) stop("usage: mpi-md-test --file PREFIX ...");
    MPI_File warm;
    snprintf(name, sizeof name, "%s.warm", prefix);
    MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &warm));
    MUST(MPI_File_close(&warm));

    /* What asking costs by itself. */
    counted();
    struct requests before = counted(), after = counted();
    long long asking = (after.all - after.unawaited) - (before.all - before.unawaited);
    for (enum op op = 0; op < ops; op++) {
        MPI_Barrier(MPI_COMM_WORLD);
        before = counted();
        for (int i = 0; i < calls; i++) {
            MPI_Offset bytes;
            snprintf(name, sizeof name, "%s.%d", prefix, i);
            double t = start();
            switch (op) {
            case op_create: MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, MPI_INFO_NULL, &files[i])); break;
            case op_open: MUST(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &files[i])); break;
            case op_set_view: MUST(MPI_File_set_view(files[i], rank, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL)); break;
            case op_resize: MUST(MPI_File_set_size(files[i], 1000 + i)); break;
            case op_preallocate: MUST(MPI_File_preallocate(files[i], 2000 + i)); break;
            case op_get_size: MUST(MPI_File_get_size(files[i], &bytes)); break;
            case op_close_new:
            case op_close: MUST(MPI_File_close(&files[i])); break;
            default:
                if (rank == 0) MUST(MPI_File_delete(name, MPI_INFO_NULL));
                break;
            }
            times[i] = took(t);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        after = counted();
        long long unawaited = after.unawaited - before.unawaited, requests = after.all - before.all - unawaited - asking;
        qsort(times, (size_t)calls, sizeof *times, compare);
        if (rank != 0) continue;
        printf("{\"bench\": \"md\", \"op\": \"%s\", \"ranks\": %d, \"median_s\": %.6f, \"least_s\": %.6f, \"most_s\": %.6f", names[op], ranks, times[calls / 2],
               times[0], times[calls - 1]);
        if (status) printf(", \"requests\": %.2f, \"unawaited\": %.2f", (double)requests / calls, (double)unawaited / calls);
        printf("}\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
