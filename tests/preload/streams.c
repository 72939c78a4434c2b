/* stdio: the C library's own reads and writes are in larger pieces, and all else is as ever. */
#include "check.h"

#include <pthread.h>
#include <stdio_ext.h>
#include <wchar.h>

enum { READ = 64 * KIB, WRITTEN = 128 * KIB, USUAL = 8 * KIB, RECORDS = 9000, THREADS = 8 };

static FILE *opened(const char *path, const char *mode, size_t buffer)
{
    FILE *stream = fopen(path, mode);
    CHECK(stream != NULL);
    /* The C library makes its own at the first use. */
    EQUAL(__fbufsize(stream), buffer);
    return stream;
}

static void put(FILE *stream, unsigned seed)
{
    for (int i = 0; i < RECORDS; i++) CHECK(fprintf(stream, "%u %d\n", seed, i * 7919) > 0);
}

static void holds_records(const char *path, unsigned seed, int times)
{
    FILE *stream = fopen(path, "r");
    CHECK(stream != NULL);
    for (int i = 0; i < RECORDS * times; i++) {
        unsigned found;
        int number;
        EQUAL(fscanf(stream, "%u %d\n", &found, &number), 2);
        CHECK(found == seed && number == i % RECORDS * 7919);
    }
    EQUAL(fgetc(stream), EOF);
    EQUAL(fclose(stream), 0);
}

static void pieces_are_larger(void)
{
    FILE *stream = opened("f", "w", WRITTEN);
    put(stream, 1);
    /* Up to the buffer nothing is there, and then all of it. */
    struct stat about;
    EQUAL(fstat(fileno(stream), &about), 0);
    EQUAL(about.st_size, 0);
    put(stream, 1);
    EQUAL(fstat(fileno(stream), &about), 0);
    EQUAL(about.st_size, WRITTEN);
    EQUAL(fclose(stream), 0);
    holds_records("f", 1, 2);
    stream = opened("f", "a", WRITTEN);
    put(stream, 1);
    EQUAL(fclose(stream), 0);
    holds_records("f", 1, 3);
    stream = opened("f", "rb", READ);
    CHECK(fgetc(stream) == '1' && lseek(fileno(stream), 0, SEEK_CUR) == READ);
    EQUAL(fseek(stream, 100 * KIB, SEEK_SET), 0);
    EQUAL(ftell(stream), 100 * KIB);
    EQUAL(fclose(stream), 0);
    int fd = open("f", O_WRONLY | O_TRUNC);
    stream = fdopen(fd, "w");
    EQUAL(__fbufsize(stream), WRITTEN);
    put(stream, 2);
    EQUAL(fclose(stream), 0);
    holds_records("f", 2, 1);
}

static void others_are_as_ever(void)
{
    FILE *stream = opened(outside("f"), "w", 0);
    put(stream, 1);
    EQUAL(fclose(stream), 0);
    /* To and fro. */
    stream = opened("f", "w+", 0);
    put(stream, 3);
    CHECK(__fbufsize(stream) <= USUAL);
    rewind(stream);
    unsigned found;
    CHECK(fscanf(stream, "%u", &found) == 1 && found == 3);
    EQUAL(fclose(stream), 0);
    /* As the program wishes. */
    static char own[512];
    stream = opened("f", "w", WRITTEN);
    EQUAL(setvbuf(stream, own, _IOFBF, sizeof own), 0);
    EQUAL(__fbufsize(stream), sizeof own);
    put(stream, 4);
    EQUAL(fclose(stream), 0);
    holds_records("f", 4, 1);
    stream = opened("f", "w", WRITTEN);
    setbuf(stream, NULL);
    CHECK(fputc('x', stream) == 'x' && lseek(fileno(stream), 0, SEEK_CUR) == 1);
    EQUAL(fclose(stream), 0);
    stream = opened("f", "w", WRITTEN);
    setlinebuf(stream);
    CHECK(fputs("ab\n", stream) >= 0 && lseek(fileno(stream), 0, SEEK_CUR) == 3);
    EQUAL(fclose(stream), 0);
    /* Of very many at a time those that come last. */
    FILE *many[300];
    for (int i = 0; i < 300; i++) many[i] = fopen("f", "w");
    EQUAL(__fbufsize(many[0]), WRITTEN);
    EQUAL(__fbufsize(many[299]), 0);
    for (int i = 0; i < 300; i++) EQUAL(fclose(many[i]), 0);
    EQUAL(fclose(opened("f", "w", WRITTEN)), 0);
    CHECK(fopen("none/f", "w") == NULL && errno == ENOENT);
    CHECK(fopen("f", "q") == NULL && errno == EINVAL);
}

/* The descriptor of a stream is the library's; the stream moves bytes unseen. Either finds what the other did. */
static void streams_and_descriptors(void)
{
    enum { BLOCK = 4 * KIB, BLOCKS = 100 };
    static char block[BLOCK], found[BLOCK];
    warm();
    const char *modes[] = {"w+", "w"};
    for (int way = 0; way < 2; way++) {
        FILE *stream = fopen("f", modes[way]);
        CHECK(stream != NULL);
        int fd = fileno(stream);
        put(stream, 1);
        EQUAL(fflush(stream), 0);
        off_t begin = lseek(fd, 0, SEEK_CUR);
        for (int i = 0; i < 4; i++) EQUAL(write(fd, block, BLOCK), BLOCK);
        DIRECTLY(BLOCKS, for (int i = 0; i < BLOCKS; i++) {
            fill(block, i, 0, BLOCK);
            EQUAL(write(fd, block, BLOCK), BLOCK);
        });
        EQUAL(fseek(stream, 0, SEEK_END), 0);
        EQUAL(ftell(stream), begin + (4 + BLOCKS) * BLOCK);
        put(stream, 1);
        EQUAL(fflush(stream), 0);
        /* What the stream writes over it is the last. */
        EQUAL(pwrite(fd, "older", 5, begin), 5);
        EQUAL(fseek(stream, begin, SEEK_SET), 0);
        CHECK(fputs("newer", stream) >= 0);
        EQUAL(fflush(stream), 0);
        if (way == 0) {
            EQUAL(fseek(stream, begin + 4 * BLOCK, SEEK_SET), 0);
            for (int i = 0; i < BLOCKS; i++) CHECK(fread(found, BLOCK, 1, stream) == 1 && filled(found, i, 0, BLOCK));
            unsigned number;
            CHECK(fscanf(stream, "%u", &number) == 1 && number == 1);
            EQUAL(pread(fd, found, 5, begin), 5);
            CHECK(memcmp(found, "newer", 5) == 0);
        }
        EQUAL(fclose(stream), 0);
        EQUAL(fd, open("f", O_RDONLY));
        EQUAL(bare_pread(fd, found, 5, begin), 5);
        CHECK(memcmp(found, "newer", 5) == 0);
        EQUAL(close(fd), 0);
    }
}

static void wide(void)
{
    FILE *stream = opened("f", "w", WRITTEN);
    for (int i = 0; i < RECORDS; i++) CHECK(fwprintf(stream, L"%d\n", i) > 0);
    EQUAL(fclose(stream), 0);
    stream = opened("f", "r", READ);
    for (int i = 0; i < RECORDS; i++) {
        int found;
        CHECK(fwscanf(stream, L"%d\n", &found) == 1 && found == i);
    }
    EQUAL(fclose(stream), 0);
}

static void reopened(void)
{
    FILE *stream = opened("f", "w", WRITTEN);
    put(stream, 5);
    CHECK(freopen("g", "w", stream) == stream);
    EQUAL(__fbufsize(stream), WRITTEN);
    put(stream, 6);
    CHECK(freopen(outside("f"), "w", stream) == stream);
    EQUAL(__fbufsize(stream), 0);
    put(stream, 7);
    CHECK(freopen("g", "r", stream) == stream);
    EQUAL(__fbufsize(stream), READ);
    unsigned found;
    CHECK(fscanf(stream, "%u", &found) == 1 && found == 6);
    EQUAL(fclose(stream), 0);
    holds_records("f", 5, 1);
    holds_records("g", 6, 1);
    holds_records(outside("f"), 7, 1);
    CHECK(freopen("f", "w", stdout) == stdout);
    put(stdout, 8);
    CHECK(freopen("/dev/null", "w", stdout) == stdout);
    holds_records("f", 8, 1);
}

/* What is in them is written at the end, also of a child that was made meanwhile. */
static void at_the_end(void)
{
    FILE *before = opened("f", "w", WRITTEN);
    put(before, 9);
    EQUAL(fflush(before), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        put(before, 9);
        put(opened("g", "w", WRITTEN), 10);
        exit(0);
    }
    ends_well(child);
    put(before, 9);
    EQUAL(fclose(before), 0);
    holds_records("f", 9, 3);
    holds_records("g", 10, 1);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 20; i++) {
            char name[8];
            snprintf(name, sizeof name, "h%d", i);
            put(opened(name, "w", WRITTEN), 11);
        }
        EQUAL(fcloseall(), 0);
        put(opened("f", "w", WRITTEN), 12);
        exit(0);
    }
    ends_well(child);
    holds_records("h0", 11, 1);
    holds_records("h19", 11, 1);
    holds_records("f", 12, 1);
}

static void *opens_and_closes(void *argument)
{
    char name[16];
    snprintf(name, sizeof name, "t%ld", (long)argument);
    for (unsigned round = 0; round < 20; round++) {
        FILE *stream = opened(name, "w", WRITTEN);
        put(stream, round);
        EQUAL(fclose(stream), 0);
        holds_records(name, round, 1);
    }
    return NULL;
}

static void many_at_once(void)
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        EQUAL(pthread_create(&threads[i], NULL, opens_and_closes, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) EQUAL(pthread_join(threads[i], NULL), 0);
}

static const struct test tests[] = {
    {"pieces_are_larger", pieces_are_larger},
    {"others_are_as_ever", others_are_as_ever},
    {"streams_and_descriptors", streams_and_descriptors},
    {"wide", wide},
    {"reopened", reopened},
    {"at_the_end", at_the_end},
    {"many_at_once", many_at_once},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
