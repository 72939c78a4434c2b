/* check.c - see check.h. */
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Failures that a case may tell of on one rank; the others are counted. */
enum { told_max = 8 };

int rank, size, rounds = 20;
bool driver;
struct random common, own;

static const char *program, *directory;
static const char *volatile running = "MPI_Init";
static int failures;

static void out_of_time(int number)
{
    static const char words[] = ": did not end in time: ";
    (void)number;
    /* Only what a signal handler may call. */
    if (write(2, program, strlen(program)) < 0 || write(2, words, sizeof words - 1) < 0 ||
        write(2, running, strlen(running)) < 0 || write(2, "\n", 1) < 0) {
        _exit(4);
    }
    _exit(3);
}

void fail(const char *file, int line, const char *format, ...)
{
    char text[900];
    va_list arguments;
    if (failures++ >= told_max) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *slash = strrchr(file, '/');
    fprintf(stderr, "%s:%d: %s, rank %d: %s\n", slash ? slash + 1 : file, line, running, rank, text);
}

void note(const char *format, ...)
{
    va_list arguments;
    if (rank != 0) return;
    printf("note    %s %s: ", program, running);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

static bool wanted(int argc, char **argv, const char *name)
{
    bool any = false;
    for (int i = 0; i < argc; i++) {
        any = true;
        if (strcmp(argv[i], name) == 0) return true;
    }
    return !any;
}

int check_main(int argc, char **argv, const struct check_case *cases)
{
    unsigned limit_s = 120;
    uint64_t seed = 0;
    int first = 2, bad = 0, good = 0;
    const char *slash = strrchr(argv[0], '/');
    program = slash ? slash + 1 : argv[0];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
        if (strcmp(argv[first], "--seed") == 0) seed = strtoull(argv[first + 1], NULL, 10);
        if (strcmp(argv[first], "--rounds") == 0) rounds = atoi(argv[first + 1]);
        if (strcmp(argv[first], "--limit") == 0) limit_s = (unsigned)atoi(argv[first + 1]);
    }
    if (argc < 2) {
        if (rank == 0) fprintf(stderr, "usage: %s DIRECTORY [--seed N] [--rounds N] [--limit SECONDS] [CASE...]\n", program);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    directory = argv[1];
    const char *tested = getenv("WEIR_MPI_TESTED");
    driver = tested && strcmp(tested, "driver") == 0;
    if (seed == 0) seed = (uint64_t)getpid() * 2654435761u ^ (uint64_t)(MPI_Wtime() * 1e6);
    MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    signal(SIGALRM, out_of_time);
    alarm(limit_s);

    for (; cases->name; cases++) {
        int mine, all;
        if (!wanted(argc - first, argv + first, cases->name)) continue;
        running = cases->name;
        /* Each case begins alike, also when it runs alone. */
        common.state = seed;
        own.state = seed * 31 + (uint64_t)rank + 1;
        failures = 0;
        double begun = MPI_Wtime();
        cases->run();
        mine = failures;
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && all == 0) printf("ok      %s %s (%.2f s)\n", program, running, MPI_Wtime() - begun);
        if (rank == 0 && all != 0) printf("FAILED  %s %s: %d checks, seed %llu\n", program, running, all, (unsigned long long)seed);
        fflush(stdout);
        if (all) bad++;
        else good++;
    }
    running = "MPI_Finalize";
    if (rank == 0) printf("%s: %d ranks: %d passed, %d failed\n", program, size, good, bad);
    fflush(stdout);
    MPI_Finalize();
    return bad != 0;
}

const char *path(const char *name)
{
    static char names[8][1024];
    static unsigned next;
    char *place = names[next++ % 8];
    snprintf(place, sizeof names[0], "%s/%s-%s-%s", directory, program, running, name);
    return place;
}

static void text_of(int error, char *text)
{
    int length = 0, class = -1;
    char words[MPI_MAX_ERROR_STRING + 1] = "";
    MPI_Error_class(error, &class);
    MPI_Error_string(error, words, &length);
    snprintf(text, 700, "error %d, class %d: %s", error, class, words);
}

bool check_ok(int error, const char *what, const char *file, int line)
{
    char text[700];
    if (error == MPI_SUCCESS) return true;
    text_of(error, text);
    fail(file, line, "%s: %s", what, text);
    return false;
}

void check_fails(int error, const char *what, const char *file, int line, const int *classes)
{
    char text[700];
    int class;
    if (error == MPI_SUCCESS) {
        fail(file, line, "%s: succeeds, and must not", what);
        return;
    }
    MPI_Error_class(error, &class);
    if (classes[0] == MPI_SUCCESS) return;
    for (const int *one = classes; *one != MPI_SUCCESS; one++) {
        if (*one == class) return;
    }
    text_of(error, text);
    fail(file, line, "%s: fails with %s; class %d was due", what, text, classes[0]);
}

bool everywhere(MPI_Comm comm, bool here)
{
    int mine = here, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm);
    return all;
}

MPI_File opened_(MPI_Comm comm, const char *name, int amode, MPI_Info info, const char *file, int line)
{
    MPI_File handle = MPI_FILE_NULL;
    char what[1100];
    snprintf(what, sizeof what, "MPI_File_open(%s, %#x)", name, (unsigned)amode);
    bool good = check_ok(MPI_File_open(comm, name, amode, info, &handle), what, file, line);
    if (everywhere(comm, good)) return handle;
    if (good) fail(file, line, "%s: succeeds here and not on other ranks", what);
    return MPI_FILE_NULL;
}

MPI_File created_(MPI_Comm comm, const char *name, const char *file, int line)
{
    MPI_File handle = opened_(comm, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, file, line);
    if (handle != MPI_FILE_NULL) check_ok(MPI_File_set_size(handle, 0), "MPI_File_set_size(0)", file, line);
    return handle;
}

void removed(const char *name)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) MPI_File_delete(name, MPI_INFO_NULL);
    MPI_Barrier(MPI_COMM_WORLD);
}

void settle(MPI_File file)
{
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
}

void check_counted(const MPI_Status *status, MPI_Datatype type, long long count, const char *file, int line)
{
    int found = -1, bytes = -1, type_size = 0;
    MPI_Count large = -1;
    MPI_Type_size(type, &type_size);
    MPI_Get_count(status, type, &found);
    MPI_Get_elements(status, MPI_BYTE, &bytes);
    MPI_Get_elements_x(status, MPI_BYTE, &large);
    if (found != count) fail(file, line, "count is %d, not %lld", found, count);
    if (bytes != count * type_size) fail(file, line, "elements are %d bytes, not %lld", bytes, count * type_size);
    if (large != count * type_size) fail(file, line, "large elements are %lld bytes, not %lld", (long long)large, count * type_size);
}

bool check_same(const void *found, const void *expected, size_t length, const char *file, int line)
{
    const unsigned char *a = found, *b = expected;
    size_t wrong = 0, first = 0;
    if (length == 0 || memcmp(a, b, length) == 0) return true;
    for (size_t i = length; i-- > 0;) {
        if (a[i] != b[i]) first = i, wrong++;
    }
    fail(file, line, "%zu of %zu bytes are wrong, the first at %zu: %02x, not %02x", wrong, length, first, a[first], b[first]);
    return false;
}

void check_holds(const char *name, MPI_Offset offset, const void *bytes, size_t length, const char *file, int line)
{
    MPI_File handle;
    MPI_Status status;
    if (!check_ok(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &handle), "open to compare", file, line)) return;
    unsigned char *found = malloc(length ? length : 1);
    memset(found, 0x5a, length);
    if (check_ok(MPI_File_read_at(handle, offset, found, (int)length, MPI_BYTE, &status), "read to compare", file, line)) {
        int count = -1;
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (count != (int)length) fail(file, line, "%d bytes of %s at %lld, not %zu", count, name, (long long)offset, length);
        else check_same(found, bytes, length, file, line);
    }
    free(found);
    MPI_File_close(&handle);
}

/* splitmix64: well spread from any seed. */
uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

long random_between(struct random *random, long least, long most)
{
    return least + (long)(random_next(random) % (uint64_t)(most - least + 1));
}

void random_fill(struct random *random, void *bytes, size_t length)
{
    unsigned char *b = bytes;
    for (size_t i = 0; i < length; i++) b[i] = (unsigned char)random_next(random);
}

void stamp_fill(void *bytes, long long offset, size_t length, unsigned file)
{
    unsigned char *b = bytes;
    for (size_t i = 0; i < length; i++) b[i] = stamp(offset + (long long)i, file);
}
