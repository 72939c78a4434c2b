/* Operations that overlap, are waited for in every way, are cancelled, and threads. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

enum { OPS = 64, BLOCK = 100 * 1000 };

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Gets an operation's result, and frees it. */
static ssize_t finish(weir_op *op)
{
    ssize_t result = -1;
    EQUAL(weir_wait(op, -1, &result), 1);
    weir_op_free(op);
    return result;
}

static void overlap(weir_pool *pool)
{
    weir_file *file = open_with(pool, "/overlap", O_RDWR | O_CREAT);
    unsigned char *written = allocate(OPS * BLOCK);
    unsigned char *read = allocate(OPS * BLOCK);
    weir_op *ops[OPS];
    fill(written, OPS * BLOCK, 3);
    for (int i = 0; i < OPS; i++)
        EQUAL(weir_submit_write(file, written + i * BLOCK, BLOCK, (uint64_t)i * BLOCK, &ops[i]), 0);
    EQUAL(weir_close(file), -EBUSY);
    CHECK(strstr(weir_error_text(), "under way") != NULL);
    /* Last first: none depends on being asked after. */
    for (int i = OPS; i-- > 0;) {
        ssize_t result = 0;
        EQUAL(weir_wait(ops[i], -1, &result), 1);
        EQUAL(result, BLOCK);
        EQUAL(weir_poll(ops[i], &result), 1);
        EQUAL(result, BLOCK);
        EQUAL(weir_wait(ops[i], 0, NULL), 1);
        weir_op_free(ops[i]);
    }
    /* Reads, taken as they come. */
    for (int i = 0; i < OPS; i++)
        EQUAL(weir_submit_read(file, read + i * BLOCK, BLOCK, (uint64_t)i * BLOCK, &ops[i]), 0);
    for (int left = OPS; left > 0; left--) {
        ssize_t index = weir_wait_any(ops, OPS, 60000);
        CHECK(index >= 0 && index < OPS && ops[index] != NULL);
        ssize_t result = 0;
        EQUAL(weir_poll(ops[index], &result), 1);
        EQUAL(result, BLOCK);
        weir_op_free(ops[index]);
        ops[index] = NULL;
    }
    EQUAL(weir_wait_any(ops, OPS, 0), -EINVAL);
    EQUAL(weir_wait_any(NULL, 1, 0), -EINVAL);
    EQUAL(memcmp(written, read, OPS * BLOCK), 0);

    /* By polling alone. */
    memset(read, 0, BLOCK);
    EQUAL(weir_submit_read(file, read, BLOCK, 0, &ops[0]), 0);
    int ended, turns = 0;
    while ((ended = weir_poll(ops[0], NULL)) == 0 && turns++ < 60000)
        pause_ms(1);
    EQUAL(ended, 1);
    EQUAL(finish(ops[0]), BLOCK);
    EQUAL(memcmp(written, read, BLOCK), 0);

    weir_extent extents[2] = {{1, 10}, {70000, 20}};
    struct iovec memory = {written, 30};
    EQUAL(weir_submit_writev_list(file, extents, 2, &memory, 1, &ops[0]), 0);
    memset(extents, 0, sizeof extents);
    EQUAL(finish(ops[0]), 30);
    extents[0] = (weir_extent){70000, 20};
    memory = (struct iovec){read, 20};
    EQUAL(weir_submit_readv_list(file, extents, 1, &memory, 1, &ops[0]), 0);
    memory = (struct iovec){NULL, 0};
    EQUAL(finish(ops[0]), 20);
    EQUAL(memcmp(read, written + 10, 20), 0);
    EQUAL(weir_submit_fsync(file, &ops[0]), 0);
    EQUAL(finish(ops[0]), 0);

    /* The end of a file, and failures. */
    EQUAL(weir_submit_read(file, read, BLOCK, OPS * BLOCK - 7, &ops[0]), 0);
    EQUAL(finish(ops[0]), 7);
    EQUAL(weir_submit_write(file, read, 1, UINT64_MAX, &ops[0]), 0);
    EQUAL(finish(ops[0]), -EFBIG);
    CHECK(strstr(weir_error_text(), "write /overlap: ") == weir_error_text());
    ops[0] = (weir_op *)1;
    EQUAL(weir_submit_read(file, NULL, 1, 0, &ops[0]), -EINVAL);
    CHECK(ops[0] == NULL);
    EQUAL(weir_submit_read(NULL, read, 1, 0, &ops[0]), -EINVAL);
    EQUAL(weir_submit_read(file, read, 1, 0, NULL), -EINVAL);
    EQUAL(weir_submit_readv_list(file, NULL, 1, NULL, 0, &ops[0]), -EINVAL);
    EQUAL(weir_submit_fsync(NULL, &ops[0]), -EINVAL);
    EQUAL(weir_poll(NULL, NULL), -EINVAL);
    EQUAL(weir_wait(NULL, 0, NULL), -EINVAL);
    weir_op_free(NULL);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/overlap"), 0);
    free(written);
    free(read);
}

/* Appends take several requests each; all go on while one of them is waited for. */
static void appends(weir_pool *pool)
{
    weir_file *file = open_with(pool, "/appends", O_RDWR | O_CREAT | O_APPEND);
    weir_op *ops[OPS];
    char blocks[OPS][10];
    for (int i = 0; i < OPS; i++) {
        memset(blocks[i], 'A' + i % 26, 10);
        EQUAL(weir_submit_write(file, blocks[i], 10, 0, &ops[i]), 0);
    }
    for (int i = 0; i < OPS; i++)
        EQUAL(finish(ops[i]), 10);
    char bytes[OPS * 10 + 1];
    EQUAL(weir_pread(file, bytes, sizeof bytes, 0), OPS * 10);
    int seen[26] = {0};
    for (int i = 0; i < OPS * 10; i += 10) {
        for (int k = 1; k < 10; k++)
            EQUAL(bytes[i + k], bytes[i]);
        seen[bytes[i] - 'A']++;
    }
    for (int i = 0; i < 26; i++)
        EQUAL(seen[i], OPS / 26 + (i < OPS % 26));
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/appends"), 0);
}

/* Freed in all states, and the memory with them: what arrives later must not be written there. */
static void cancelling(weir_pool *pool)
{
    enum { LENGTH = 4 << 20, ROUNDS = 24 };
    weir_file *file = open_with(pool, "/cancel", O_RDWR | O_CREAT);
    unsigned char *content = allocate(LENGTH);
    fill(content, LENGTH, 9);
    EQUAL(weir_pwrite(file, content, LENGTH, 0), LENGTH);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *buffer = allocate(LENGTH);
        weir_op *read, *write, *kept;
        unsigned char kept_bytes[1000];
        EQUAL(weir_submit_read(file, buffer, LENGTH, 0, &read), 0);
        memset(buffer, 0, 0);
        EQUAL(weir_submit_write(file, content, LENGTH, 0, &write), 0);
        EQUAL(weir_submit_read(file, kept_bytes, sizeof kept_bytes, 500000, &kept), 0);
        for (int turn = 0; turn < round % 6; turn++)
            weir_poll(kept, NULL);
        if (round % 2 == 0)
            pause_ms(1);
        weir_op_free(read);
        free(buffer);
        weir_op_free(write);
        EQUAL(finish(kept), sizeof kept_bytes);
        EQUAL(memcmp(kept_bytes, content + 500000, sizeof kept_bytes), 0);
    }
    unsigned char *whole = allocate(LENGTH);
    EQUAL(weir_pread(file, whole, LENGTH, 0), LENGTH);
    EQUAL(memcmp(whole, content, LENGTH), 0);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/cancel"), 0);
    free(content);
    free(whole);
}

/* Time that nobody was there to listen is no silence of the servers'. */
static void unattended(void)
{
    enum { COUNT = 16, LENGTH = 1 << 20 };
    weir_connect_options options = {
        .struct_size = sizeof options, .connections = 4, .silence_ms = 400};
    weir_pool *pool;
    EQUAL(weir_connect(NULL, &options, &pool), 0);
    weir_file *file = open_with(pool, "/unattended", O_RDWR | O_CREAT);
    unsigned char *content = allocate(LENGTH);
    fill(content, LENGTH, 11);
    weir_op *ops[COUNT];
    for (int i = 0; i < COUNT; i++)
        EQUAL(weir_submit_write(file, content, LENGTH, (uint64_t)i * LENGTH, &ops[i]), 0);
    pause_ms(1200);
    for (int i = 0; i < COUNT; i++)
        EQUAL(finish(ops[i]), LENGTH);

    /* Operations of two pools are not waited for together. */
    weir_pool *other = connect_default();
    weir_file *there = open_with(other, "/unattended", O_RDWR);
    EQUAL(weir_submit_read(file, content, 1, 0, &ops[0]), 0);
    EQUAL(weir_submit_read(there, content + 1, 1, 0, &ops[1]), 0);
    EQUAL(weir_wait_any(ops, 2, -1), -EINVAL);
    EQUAL(finish(ops[0]), 1);
    EQUAL(finish(ops[1]), 1);
    EQUAL(weir_close(there), 0);
    EQUAL(weir_disconnect(other), 0);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/unattended"), 0);
    EQUAL(weir_disconnect(pool), 0);
    free(content);
}

enum { THREADS = 8, ROUNDS = 40, PART = 30000 };

struct worker {
    pthread_t thread;
    weir_pool *pool;
    weir_file *file;
    int index;
};

/* One file and one pool, many threads: plain calls, operations and appends at once. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    uint64_t base = (uint64_t)worker->index * PART;
    unsigned char *bytes = allocate(PART), *back = allocate(PART);
    weir_file *log = open_with(worker->pool, "/log", O_WRONLY | O_CREAT | O_APPEND);
    for (int round = 0; round < ROUNDS; round++) {
        weir_op *ops[3];
        fill(bytes, PART, (uint64_t)(worker->index * ROUNDS + round));
        for (int i = 0; i < 3; i++)
            EQUAL(weir_submit_write(worker->file, bytes + i * (PART / 3), PART / 3,
                                    base + (uint64_t)i * (PART / 3), &ops[i]),
                  0);
        EQUAL(weir_append(log, &worker->index, sizeof worker->index, NULL), sizeof worker->index);
        for (int left = 3; left > 0; left--) {
            ssize_t index = weir_wait_any(ops, 3, -1);
            CHECK(index >= 0);
            EQUAL(finish(ops[index]), PART / 3);
            ops[index] = NULL;
        }
        EQUAL(weir_pread(worker->file, back, PART, base), PART);
        EQUAL(memcmp(bytes, back, PART), 0);
    }
    /* Another thread's failure is not told here. */
    CHECK(strcmp(weir_error_text(), "") == 0);
    EQUAL(weir_close(log), 0);
    free(bytes);
    free(back);
    return NULL;
}

static void threads(weir_pool *pool)
{
    weir_file *file = open_with(pool, "/shared", O_RDWR | O_CREAT);
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.pool = pool, .file = file, .index = i};
        EQUAL(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 50; i++)
        EQUAL(weir_unlink(pool, "/nothing"), -ENOENT);
    for (int i = 0; i < THREADS; i++)
        EQUAL(pthread_join(workers[i].thread, NULL), 0);
    struct weir_stat stat;
    EQUAL(weir_fstat(file, &stat), 0);
    EQUAL(stat.size, THREADS * PART);
    EQUAL(weir_stat(pool, "/log", 0, &stat), 0);
    EQUAL(stat.size, THREADS * ROUNDS * sizeof(int));
    EQUAL(weir_close(file), 0);
    file = open_with(pool, "/log", O_RDONLY);
    int log[THREADS * ROUNDS], seen[THREADS] = {0};
    EQUAL(weir_pread(file, log, sizeof log, 0), sizeof log);
    for (int i = 0; i < THREADS * ROUNDS; i++) {
        CHECK(log[i] >= 0 && log[i] < THREADS);
        EQUAL(seen[log[i]]++ < ROUNDS, 1);
    }
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/log"), 0);
    EQUAL(weir_unlink(pool, "/shared"), 0);
}

int main(void)
{
    weir_pool *pool = connect_default();
    overlap(pool);
    appends(pool);
    cancelling(pool);
    unattended();
    threads(pool);
    EQUAL(weir_disconnect(pool), 0);
    return 0;
}
