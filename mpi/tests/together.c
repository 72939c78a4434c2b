/* together.c - collective accesses of all ranks, exchanged or not, against what each byte should be.
 *
 *   together FILE [seed [cases]]
 */
#include "random_type.h"

#include <stdio.h>
#include <string.h>

static int rank, ranks, failures;

static void fail(uint64_t seed, const char *what, long long got, long long wanted)
{
    failures++;
    printf("rank %d seed %llu: %s: got %lld, wanted %lld\n", rank, (unsigned long long)seed, what, got,
           wanted);
    fflush(stdout);
}

/* What rank `who` writes as byte `position` of its data. Never 0, which is what holes are. */
static unsigned char content(uint64_t seed, int who, int64_t position)
{
    uint64_t mixed = (seed * 31 + (uint64_t)who) * 0x9e3779b97f4a7c15u + (uint64_t)position * 2654435761u;
    return (unsigned char)(mixed >> 29 | 1);
}

enum { FILE_MAX = 1 << 21 };
static unsigned char model[FILE_MAX];

static const char *const choices[] = {"enable", "disable", "automatic"};

/* Blocks of `block` bytes, one rank's after the other's, `gap` bytes between rounds of them; rank 0
 * may be left out, and ranks may have different amounts. */
struct pattern {
    int64_t displacement, block, round, position;
    int64_t length[64];
};

static int64_t place(const struct pattern *pattern, int who, int64_t position)
{
    return pattern->displacement + who * pattern->block + position / pattern->block * pattern->round +
           position % pattern->block;
}

static void one(const char *name, uint64_t seed)
{
    start_random(seed);
    struct pattern pattern = {.displacement = pick(0, 5000), .block = pick(1, 700)};
    pattern.round = pattern.block * ranks + (pick(0, 1) ? 0 : pick(0, 500));
    pattern.position = pick(0, 3000);
    int64_t size = 0;
    for (int i = 0; i < ranks; i++) {
        pattern.length[i] = pick(0, 4) == 0 ? 0 : pick(1, 300000 / ranks);
    }
    memset(model, 0, sizeof model);
    for (int i = 0; i < ranks; i++) {
        for (int64_t at = 0; at < pattern.length[i]; at++) {
            int64_t offset = place(&pattern, i, pattern.position + at);
            model[offset] = content(seed, i, at);
            size = offset + 1 > size ? offset + 1 : size;
        }
    }
    MPI_Info info;
    MPI_Info_create(&info);
    char number[32];
    MPI_Info_set(info, "romio_cb_write", choices[pick(0, 2)]);
    MPI_Info_set(info, "romio_cb_read", choices[pick(0, 2)]);
    snprintf(number, sizeof number, "%d", 4096 << pick(0, 3));
    MPI_Info_set(info, "striping_unit", number);
    snprintf(number, sizeof number, "%d", pick(1, 3));
    MPI_Info_set(info, "striping_factor", number);
    snprintf(number, sizeof number, "%d", pick(4096, 100000));
    MPI_Info_set(info, "cb_buffer_size", number);
    snprintf(number, sizeof number, "%d", pick(1, ranks + 1));
    if (pick(0, 1)) {
        MPI_Info_set(info, "cb_nodes", number);
    }
    if (rank == 0) {
        MPI_File_delete(name, MPI_INFO_NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file;
    int error = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file);
    MPI_Info_free(&info);
    if (error != MPI_SUCCESS) {
        fail(seed, "open", error, MPI_SUCCESS);
        return;
    }
    MPI_Datatype block, tile, memory_type;
    MPI_Type_contiguous((int)pattern.block, MPI_BYTE, &block);
    MPI_Type_create_resized(block, 0, (MPI_Aint)pattern.round, &tile);
    MPI_Type_commit(&tile);
    MPI_File_set_view(file, pattern.displacement + rank * pattern.block, MPI_BYTE, tile, "native",
                      MPI_INFO_NULL);
    /* Memory in one piece, or every second pair of bytes. */
    int64_t length = pattern.length[rank];
    int64_t step = pick(0, 1) && length % 2 == 0 ? 4 : 2;
    unsigned char *memory = calloc(1, (size_t)(length * 2 + 8));
    MPI_Type_contiguous(2, MPI_BYTE, &memory_type);
    MPI_Datatype apart;
    MPI_Type_create_resized(memory_type, 0, (MPI_Aint)step, &apart);
    MPI_Type_commit(&apart);
    bool plain = step == 2;
    for (int64_t i = 0; i < length; i++) {
        memory[plain ? i : i / 2 * 4 + i % 2] = content(seed, rank, i);
    }
    MPI_Datatype type = plain ? MPI_BYTE : apart;
    int count = (int)(plain ? length : length / 2), got = -1;
    MPI_Status status;
    error = MPI_File_write_at_all(file, pattern.position, memory, count, type, &status);
    MPI_Get_elements(&status, MPI_BYTE, &got);
    if (error != MPI_SUCCESS || got != length) {
        fail(seed, "bytes written", got, length);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    memset(memory, 0, (size_t)(length * 2 + 8));
    /* The same back, and some of what lies behind the file's end. */
    error = MPI_File_read_at_all(file, pattern.position, memory, count, type, &status);
    MPI_Get_elements(&status, MPI_BYTE, &got);
    if (error != MPI_SUCCESS || got != length) {
        fail(seed, "bytes read", got, length);
    }
    for (int64_t i = 0; i < length; i++) {
        unsigned char byte = memory[plain ? i : i / 2 * 4 + i % 2];
        if (byte != content(seed, rank, i)) {
            fail(seed, "byte read", byte, content(seed, rank, i));
            break;
        }
    }
    int64_t more = length + 5000, before_end = 0;
    unsigned char *behind = malloc((size_t)more);
    for (int64_t i = 0; i < more; i++) {
        before_end += place(&pattern, rank, pattern.position + i) < size;
    }
    error = MPI_File_read_at_all(file, pattern.position, behind, (int)more, MPI_BYTE, &status);
    MPI_Get_elements(&status, MPI_BYTE, &got);
    if (error != MPI_SUCCESS || got != before_end) {
        fail(seed, "bytes before the end", got, before_end);
    }
    for (int64_t i = 0; i < before_end; i++) {
        unsigned char wanted = model[place(&pattern, rank, pattern.position + i)];
        if (behind[i] != wanted) {
            fail(seed, "byte read before the end", behind[i], wanted);
            break;
        }
    }
    /* Every byte of the file, holes too. */
    MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    if (rank == 0) {
        MPI_Offset bytes;
        MPI_File_get_size(file, &bytes);
        unsigned char *whole = malloc((size_t)size + 1);
        MPI_File_read_at(file, 0, whole, (int)size, MPI_BYTE, MPI_STATUS_IGNORE);
        if (bytes != size || memcmp(whole, model, (size_t)size) != 0) {
            fail(seed, "file", bytes, size);
        }
        free(whole);
    }
    MPI_File_close(&file);
    free(behind);
    free(memory);
    MPI_Type_free(&apart);
    MPI_Type_free(&memory_type);
    MPI_Type_free(&tile);
    MPI_Type_free(&block);
}

/* All ranks write the same bytes, and a rank that is wrong does not leave the others waiting. */
static void odd_ones(const char *name)
{
    MPI_File file;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_cb_write", "enable");
    if (MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file) !=
        MPI_SUCCESS) {
        fail(0, "open", 1, 0);
        return;
    }
    static unsigned char mine[100000], back[100000];
    memset(mine, rank + 1, sizeof mine);
    MPI_File_write_at_all(file, 0, mine, (int)sizeof mine, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_read_at_all(file, 0, back, (int)sizeof back, MPI_BYTE, MPI_STATUS_IGNORE);
    for (size_t i = 0; i < sizeof back; i++) {
        if (back[i] < 1 || back[i] > ranks) {
            fail(0, "byte that all wrote", back[i], 1);
            break;
        }
    }
    int error = MPI_File_write_at_all(file, 0, mine, rank == 0 ? -1 : 1000, MPI_BYTE,
                                      MPI_STATUS_IGNORE);
    if (rank == 0 && error == MPI_SUCCESS) {
        fail(0, "negative count", error, MPI_ERR_COUNT);
    }
    MPI_File_close(&file);
    MPI_Info_free(&info);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *name = argc > 1 ? argv[1] : "weir:/together";
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    uint64_t cases = argc > 3 ? strtoull(argv[3], NULL, 0) : 40;
    for (uint64_t i = 0; i < cases && failures == 0; i++) {
        one(name, first + i);
        /* Who fails ends it for all, so that nobody waits. */
        MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    odd_ones(name);
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_File_delete(name, MPI_INFO_NULL);
        printf("together: %llu cases, %d failures\n", (unsigned long long)cases, failures);
    }
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
