/* Connecting, and reading and writing open files. */
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TARGETS = 4, STRIPE = 64 * 1024 };

static void connecting(const char *directory)
{
    weir_pool *pool = (weir_pool *)1;
    EQUAL(weir_connect("/nowhere/at/all", NULL, &pool), -ENOENT);
    CHECK(pool == NULL);
    CHECK(strstr(weir_error_text(), "/nowhere/at/all") != NULL);
    EQUAL(weir_connect("no-such-name", NULL, &pool), -ENOENT);
    EQUAL(weir_connect("", NULL, &pool), -EINVAL);
    EQUAL(weir_connect("torn", NULL, &pool), -EINVAL);
    EQUAL(weir_connect("stolen", NULL, &pool), -EACCES);
    CHECK(strstr(weir_error_text(), "secret") != NULL);
    EQUAL(weir_connect(NULL, NULL, NULL), -EINVAL);

    weir_connect_options options = {.struct_size = 3};
    EQUAL(weir_connect(NULL, &options, &pool), -EINVAL);
    options = (weir_connect_options){.struct_size = sizeof options, .connections = 17};
    EQUAL(weir_connect(NULL, &options, &pool), -EINVAL);
    options = (weir_connect_options){.struct_size = sizeof options, .silence_ms = 1};
    EQUAL(weir_connect(NULL, &options, &pool), -EINVAL);
    options = (weir_connect_options){.struct_size = sizeof options, .transfer_size = 1};
    EQUAL(weir_connect(NULL, &options, &pool), -EINVAL);

    /* By the directory, and with every option. */
    options = (weir_connect_options){.struct_size = sizeof options,
                                     .connections = 3,
                                     .silence_ms = 5000,
                                     .transfer_size = 256 * 1024};
    EQUAL(weir_connect(directory, &options, &pool), 0);
    EQUAL(weir_disconnect(pool), 0);
    EQUAL(weir_disconnect(NULL), 0);

    char *named = getenv("WEIR_POOL");
    char *saved = allocate(strlen(named) + 1);
    strcpy(saved, named);
    unsetenv("WEIR_POOL");
    EQUAL(weir_connect(NULL, NULL, &pool), -ENOENT);
    CHECK(strstr(weir_error_text(), "WEIR_POOL") != NULL);
    setenv("WEIR_POOL", saved, 1);
    free(saved);
}

static void about_the_pool(weir_pool *pool)
{
    CHECK(strcmp(weir_version(), WEIR_VERSION) == 0);

    struct weir_statfs fill_of;
    EQUAL(weir_statfs(pool, &fill_of), 0);
    EQUAL(fill_of.targets, TARGETS);
    EQUAL(fill_of.servers, TARGETS);
    CHECK(fill_of.capacity > 0 && fill_of.used <= fill_of.capacity);
    EQUAL(weir_statfs(pool, NULL), -EINVAL);

    ssize_t length = weir_describe(pool, NULL, 0);
    CHECK(length > 0);
    char *text = allocate((size_t)length + 1);
    EQUAL(weir_describe(pool, text, (size_t)length + 1), length);
    EQUAL(strlen(text), length);
    CHECK(text[0] == '{' && strstr(text, "\"stripe_size\":65536") != NULL);
    EQUAL(weir_describe(pool, text, 5), length);
    EQUAL(strlen(text), 4);
    free(text);
}

static void opening(weir_pool *pool)
{
    weir_file *file = (weir_file *)1;
    EQUAL(weir_open(pool, "/open", O_RDONLY, 0, NULL, &file), -ENOENT);
    CHECK(file == NULL);
    CHECK(strstr(weir_error_text(), "open /open: ") == weir_error_text());
    EQUAL(weir_open(NULL, "/open", O_RDONLY, 0, NULL, &file), -EINVAL);
    EQUAL(weir_open(pool, NULL, O_RDONLY, 0, NULL, &file), -EINVAL);
    EQUAL(weir_open(pool, "/open", O_RDONLY, 0, NULL, NULL), -EINVAL);
    EQUAL(weir_open(pool, "", O_RDONLY, 0, NULL, &file), -ENOENT);
    EQUAL(weir_open(pool, "/", O_RDONLY, 0, NULL, &file), -EISDIR);
    EQUAL(weir_open(pool, "/open", O_ACCMODE, 0, NULL, &file), -EINVAL);
    EQUAL(weir_open(pool, "/open", O_RDONLY | O_TRUNC, 0, NULL, &file), -EINVAL);
    EQUAL(weir_open(pool, "/open", O_RDWR | O_CREAT | O_NONBLOCK, 0644, NULL, &file), -EINVAL);
    EQUAL(weir_open(pool, "/no/such/open", O_RDWR | O_CREAT, 0644, NULL, &file), -ENOENT);

    /* Modes are taken as they are: no umask. */
    umask(077);
    EQUAL(weir_open(pool, "/open", O_RDWR | O_CREAT | O_EXCL, 0666, NULL, &file), 0);
    struct weir_stat stat;
    EQUAL(weir_fstat(file, &stat), 0);
    EQUAL(stat.mode & 07777, 0666);
    CHECK(S_ISREG(stat.mode));
    EQUAL(stat.size, 0);
    EQUAL(weir_pwrite(file, "0123456789", 10, 0), 10);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_close(NULL), 0);

    EQUAL(weir_open(pool, "/open", O_RDWR | O_CREAT | O_EXCL, 0666, NULL, &file), -EEXIST);
    /* Without O_TRUNC the bytes stay, with it they go. */
    file = open_with(pool, "open", O_RDONLY | O_CREAT | O_CLOEXEC);
    char bytes[16];
    memset(bytes, '-', sizeof bytes);
    EQUAL(weir_pread(file, bytes, sizeof bytes, 0), 10);
    EQUAL(memcmp(bytes, "0123456789------", 16), 0);
    EQUAL(weir_pread(file, bytes, 4, 8), 2);
    EQUAL(weir_pread(file, bytes, 4, 10), 0);
    EQUAL(weir_pread(file, bytes, 4, 1000000), 0);
    EQUAL(weir_pread(file, NULL, 0, 0), 0);
    EQUAL(weir_pread(file, NULL, 1, 0), -EINVAL);
    EQUAL(weir_pread(NULL, bytes, 1, 0), -EINVAL);
    EQUAL(weir_pread(file, bytes, 1, UINT64_MAX), -EFBIG);
    EQUAL(weir_pwrite(file, "x", 1, 0), -EBADF);
    CHECK(strstr(weir_error_text(), "write /open: ") == weir_error_text());
    EQUAL(weir_append(file, "x", 1, NULL), -EBADF);
    EQUAL(weir_ftruncate(file, 0), -EINVAL);
    EQUAL(weir_close(file), 0);

    file = open_with(pool, "/open", O_WRONLY | O_TRUNC);
    EQUAL(weir_fstat(file, &stat), 0);
    EQUAL(stat.size, 0);
    EQUAL(weir_pread(file, bytes, 1, 0), -EBADF);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/open"), 0);
}

static void striping(weir_pool *pool)
{
    weir_layout layout = {.struct_size = sizeof layout, .stripe_size = 8192, .stripe_count = 2};
    weir_file *file;
    EQUAL(weir_open(pool, "/striped", O_RDWR | O_CREAT, 0644, &layout, &file), 0);
    weir_layout found = {.struct_size = sizeof found};
    EQUAL(weir_flayout(file, &found), 0);
    EQUAL(found.stripe_size, 8192);
    EQUAL(found.stripe_count, 2);
    EQUAL(weir_flayout(file, NULL), -EINVAL);
    size_t length = 3 * 1000 * 1000 + 17;
    unsigned char *written = allocate(length);
    unsigned char *read = allocate(length);
    fill(written, length, 1);
    EQUAL(weir_pwrite(file, written, length, 5), length);
    EQUAL(weir_fsync(file), 0);
    EQUAL(weir_pread(file, read, length, 5), length);
    EQUAL(memcmp(written, read, length), 0);
    struct weir_stat stat;
    EQUAL(weir_fstat(file, &stat), 0);
    EQUAL(stat.size, length + 5);
    EQUAL(weir_fstat(file, NULL), -EINVAL);

    /* Cut, and grown again: zeros behind the cut. */
    EQUAL(weir_ftruncate(file, 1000), 0);
    EQUAL(weir_truncate(pool, "/striped", 2000), 0);
    EQUAL(weir_pread(file, read, length, 0), 2000);
    EQUAL(memcmp(read + 5, written, 995), 0);
    for (int i = 1000; i < 2000; i++)
        EQUAL(read[i], 0);
    EQUAL(weir_ftruncate(file, UINT64_MAX), -EFBIG);
    EQUAL(weir_close(file), 0);

    layout.stripe_size = 5000;
    EQUAL(weir_open(pool, "/bad", O_RDWR | O_CREAT, 0644, &layout, &file), -EINVAL);
    layout = (weir_layout){.struct_size = 1};
    EQUAL(weir_open(pool, "/bad", O_RDWR | O_CREAT, 0644, &layout, &file), -EINVAL);
    EQUAL(weir_unlink(pool, "/striped"), 0);
    free(written);
    free(read);
}

static void appending(weir_pool *pool)
{
    weir_file *file = open_with(pool, "/log", O_RDWR | O_CREAT | O_APPEND);
    EQUAL(weir_pwrite(file, "one ", 4, 12345), 4);
    uint64_t offset = 0;
    EQUAL(weir_append(file, "two ", 4, &offset), 4);
    EQUAL(offset, 4);
    EQUAL(weir_append(file, "three", 5, NULL), 5);
    char bytes[20] = {0};
    EQUAL(weir_pread(file, bytes, sizeof bytes, 0), 13);
    EQUAL(strcmp(bytes, "one two three"), 0);
    weir_extent extent = {0, 1};
    struct iovec memory = {bytes, 1};
    EQUAL(weir_writev_list(file, &extent, 1, &memory, 1), -EINVAL);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/log"), 0);
}

/* Random lists of extents and memory against a plain array. */
static void lists(weir_pool *pool)
{
    enum { SIZE = 512 * 1024, EXTENTS = 300, ROUNDS = 25 };
    weir_file *file = open_with(pool, "/list", O_RDWR | O_CREAT);
    unsigned char *model = calloc(1, SIZE);
    unsigned char *bytes = allocate(SIZE);
    unsigned char *expected = allocate(SIZE);
    uint64_t state = 7, size = 0;
    for (int round = 0; round < ROUNDS; round++) {
        weir_extent extents[EXTENTS];
        struct iovec memory[2 * EXTENTS];
        size_t count = 1 + random_next(&state) % EXTENTS, total = 0, pieces = 0;
        for (size_t i = 0; i < count; i++) {
            extents[i].length = random_next(&state) % 1500;
            extents[i].offset = random_next(&state) % (SIZE - 1500);
            total += extents[i].length;
        }
        for (size_t at = 0; at < total;) {
            size_t length = random_next(&state) % 5000;
            if (length > total - at || pieces == 2 * EXTENTS - 1)
                length = total - at;
            memory[pieces].iov_base = bytes + at;
            memory[pieces++].iov_len = length;
            at += length;
        }
        if (round % 2 == 0) {
            fill(bytes, total, state);
            EQUAL(weir_writev_list(file, extents, count, memory, pieces), total);
            for (size_t i = 0, at = 0; i < count; at += extents[i++].length) {
                memcpy(model + extents[i].offset, bytes + at, extents[i].length);
                uint64_t end = extents[i].offset + extents[i].length;
                if (extents[i].length > 0 && end > size)
                    size = end;
            }
        } else {
            memset(bytes, 0xee, SIZE);
            size_t before_end = 0;
            for (size_t i = 0, at = 0; i < count; at += extents[i++].length) {
                /* What lies behind the end is left alone, or becomes zeros: looked at below. */
                memset(expected + at, 0xee, extents[i].length);
                if (extents[i].offset < size) {
                    uint64_t there = size - extents[i].offset;
                    memcpy(expected + at, model + extents[i].offset,
                           there < extents[i].length ? there : extents[i].length);
                }
                uint64_t end = extents[i].offset + extents[i].length;
                if (end <= size)
                    before_end += extents[i].length;
                else if (extents[i].offset < size)
                    before_end += size - extents[i].offset;
            }
            EQUAL(weir_readv_list(file, extents, count, memory, pieces), before_end);
            for (size_t i = 0, at = 0; i < count; at += extents[i++].length) {
                for (size_t j = 0; j < extents[i].length; j++) {
                    if (extents[i].offset + j >= size && bytes[at + j] == 0)
                        bytes[at + j] = 0xee;
                }
            }
            EQUAL(memcmp(bytes, expected, total), 0);
        }
    }
    EQUAL(weir_pread(file, bytes, SIZE, 0), size);
    EQUAL(memcmp(bytes, model, size), 0);

    weir_extent extent = {0, 10};
    struct iovec memory = {bytes, 9};
    EQUAL(weir_readv_list(file, &extent, 1, &memory, 1), -EINVAL);
    EQUAL(weir_writev_list(file, &extent, 1, &memory, 1), -EINVAL);
    EQUAL(weir_writev_list(file, NULL, 1, &memory, 1), -EINVAL);
    EQUAL(weir_writev_list(file, &extent, 1, NULL, 1), -EINVAL);
    EQUAL(weir_writev_list(NULL, &extent, 1, &memory, 1), -EINVAL);
    memory.iov_base = NULL;
    EQUAL(weir_readv_list(file, &extent, 1, &memory, 1), -EINVAL);
    memory = (struct iovec){bytes, SIZE_MAX};
    EQUAL(weir_readv_list(file, &extent, 1, &memory, 1), -EINVAL);
    EQUAL(weir_readv_list(file, NULL, 0, NULL, 0), 0);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/list"), 0);
    free(model);
    free(bytes);
    free(expected);
}

/* A child has no use of its parent's handles, does the parent no harm, and can connect anew. */
static void forking(weir_pool *pool)
{
    weir_file *file = open_with(pool, "/forked", O_RDWR | O_CREAT);
    weir_op *op;
    static char byte = 'p';
    EQUAL(weir_submit_write(file, &byte, 1, 0, &op), 0);
    weir_dir *dir;
    EQUAL(weir_opendir(pool, "/", &dir), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EQUAL(weir_pwrite(file, "c", 1, 0), -EINVAL);
        CHECK(strstr(weir_error_text(), "fork") != NULL);
        EQUAL(weir_poll(op, NULL), -EINVAL);
        weir_op_free(op);
        EQUAL(weir_unlink(pool, "/forked"), -EINVAL);
        EQUAL(weir_close(file), -EINVAL);
        EQUAL(weir_closedir(dir), -EINVAL);
        EQUAL(weir_disconnect(pool), -EINVAL);
        weir_pool *own = connect_default();
        weir_file *mine = open_with(own, "/forked", O_RDWR);
        EQUAL(weir_pwrite(mine, "C", 1, 1), 1);
        EQUAL(weir_close(mine), 0);
        EQUAL(weir_disconnect(own), 0);
        _exit(0);
    }
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    ssize_t result;
    EQUAL(weir_wait(op, -1, &result), 1);
    EQUAL(result, 1);
    weir_op_free(op);
    char bytes[2];
    EQUAL(weir_pread(file, bytes, 2, 0), 2);
    EQUAL(memcmp(bytes, "pC", 2), 0);
    EQUAL(weir_closedir(dir), 0);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/forked"), 0);
}

/* Memory that cannot be read is an error of the call that names it, and of no other. */
static void bad_memory(weir_pool *pool)
{
    enum { LENGTH = 1 << 20 };
    weir_file *file = open_with(pool, "/memory", O_RDWR | O_CREAT);
    char *good = allocate(LENGTH);
    memset(good, 'g', LENGTH);
    EQUAL(weir_pwrite(file, good, LENGTH, 0), LENGTH);
    char *bad = mmap(NULL, 2 * LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bad != MAP_FAILED);
    EQUAL(weir_pwrite(file, bad, LENGTH, 0), -EFAULT);
    CHECK(strstr(weir_error_text(), "write /memory: ") == weir_error_text());
    /* The first half of it is there. */
    EQUAL(mprotect(bad, LENGTH, PROT_READ | PROT_WRITE), 0);
    EQUAL(weir_pwrite(file, bad, 2 * LENGTH, 2 * LENGTH), -EFAULT);
    memset(good, 0, LENGTH);
    EQUAL(weir_pread(file, good, LENGTH, 0), LENGTH);
    CHECK(good[0] == 'g' && good[LENGTH - 1] == 'g');
    EQUAL(weir_pwrite(file, good, LENGTH, 0), LENGTH);
    munmap(bad, 2 * LENGTH);
    free(good);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_unlink(pool, "/memory"), 0);
}

int main(int argc, char **argv)
{
    EQUAL(argc, 2);
    CHECK(strcmp(weir_error_text(), "") == 0);
    connecting(argv[1]);
    weir_pool *pool = connect_default();
    errno = 99;
    about_the_pool(pool);
    opening(pool);
    striping(pool);
    appending(pool);
    lists(pool);
    bad_memory(pool);
    EQUAL(errno, 99);
    forking(pool);

    /* Files outlive the handle of their pool. */
    weir_file *file = open_with(pool, "/last", O_RDWR | O_CREAT);
    EQUAL(weir_disconnect(pool), 0);
    EQUAL(weir_pwrite(file, "x", 1, 0), 1);
    EQUAL(weir_close(file), 0);
    return 0;
}
