/* Mappings of files that are read and written through the library at the same time. */
#include "check.h"

#include <sys/sendfile.h>

enum { PAGE = 4096, LENGTH = 25 * PAGE };
static unsigned char memory[LENGTH];

static unsigned char *mapped(int fd, int flags, size_t length)
{
    unsigned char *map = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(map != MAP_FAILED);
    return map;
}

static void shared(void)
{
    warm();
    int fd = borrowed("f", O_CREAT | O_RDWR);
    fill(memory, 1, 0, LENGTH);
    DIRECTLY(1, EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH));
    unsigned char *map = mapped(fd, MAP_SHARED, LENGTH);
    CHECK(filled(map, 1, 0, LENGTH));
    for (unsigned round = 2; round < 10; round++) {
        /* What is written is seen in the mapping, and the other way round. */
        fill(memory, round, 0, LENGTH);
        EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
        CHECK(filled(map, round, 0, LENGTH));
        fill(map + 100, round + 50, 100, PAGE);
        EQUAL(pread(fd, memory, LENGTH, 0), LENGTH);
        CHECK(filled(memory + 100, round + 50, 100, PAGE) && filled(memory + 100 + PAGE, round, 100 + PAGE, 1000));
        int other = open("f", O_RDWR);
        EQUAL(pread(other, memory, LENGTH, 0), LENGTH);
        CHECK(filled(memory + 100, round + 50, 100, PAGE));
        EQUAL(pwrite(other, "through", 7, 0), 7);
        CHECK(memcmp(map, "through", 7) == 0);
        EQUAL(close(other), 0);
        EQUAL(msync(map, LENGTH, MS_SYNC), 0);
        EQUAL(bare_pread(fd, memory, LENGTH, 0), LENGTH);
        CHECK(filled(memory + 100, round + 50, 100, PAGE));
    }
    fill(map, 20, 0, LENGTH);
    EQUAL(munmap(map, LENGTH), 0);
    holds(fd, 20, 0, LENGTH);
    /* Mapped through one descriptor, which is closed, and written through another. */
    int other = open("f", O_RDWR);
    map = mapped(other, MAP_SHARED, LENGTH);
    EQUAL(close(other), 0);
    CHECK(filled(map, 20, 0, LENGTH));
    fill(memory, 21, 0, LENGTH);
    EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
    CHECK(filled(map, 21, 0, LENGTH));
    EQUAL(munmap(map, LENGTH), 0);
}

static void grown(void)
{
    warm();
    for (int way = 0; way < 3; way++) {
        for (unsigned pages = 2; pages < 20; pages += 3) {
            unlink("f");
            int fd = borrowed("f", O_CREAT | O_RDWR);
            EQUAL(bare_pwrite(fd, memory, 1, 0), 1);
            int other = way == 1 ? open("f", O_RDWR) : fd;
            fill(memory, pages, 0, pages * PAGE);
            pid_t child = way == 2 ? fork() : 0;
            if (child == 0) {
                /* By another process, perhaps: the kernel does not hear of it. */
                borrow(fd);
                DIRECTLY(1, EQUAL(pwrite(fd, memory, pages * PAGE, 0), pages * PAGE));
                if (way == 2) _exit(0);
            } else {
                ends_well(child);
            }
            /* Nobody asks for the file's length before. */
            unsigned char *map = mapped(other, pages % 2 ? MAP_SHARED : MAP_PRIVATE, pages * PAGE);
            CHECK(filled(map, pages, 0, pages * PAGE));
            EQUAL(munmap(map, pages * PAGE), 0);
            if (way == 1) close(other);
            close(fd);
        }
    }
}

static void private(void)
{
    warm();
    int fd = borrowed("f", O_CREAT | O_RDWR);
    fill(memory, 1, 0, LENGTH);
    EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
    unsigned char *map = mapped(fd, MAP_PRIVATE, LENGTH);
    fill(map, 2, 0, PAGE);
    holds(fd, 1, 0, LENGTH);
    CHECK(filled(map, 2, 0, PAGE) && filled(map + PAGE, 1, PAGE, LENGTH - PAGE));
    /* Into the memory of a mapping, and out of one. */
    EQUAL(pread(fd, map, LENGTH, 0), LENGTH);
    CHECK(filled(map, 1, 0, LENGTH));
    int other = borrowed("g", O_CREAT | O_RDWR);
    EQUAL(pwrite(other, map, LENGTH, 0), LENGTH);
    holds(other, 1, 0, LENGTH);
    unsigned char *onto = mapped(other, MAP_SHARED, LENGTH);
    fill(memory, 3, 0, LENGTH);
    EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
    EQUAL(pread(fd, onto, LENGTH, 0), LENGTH);
    EQUAL(pwrite(fd, onto, LENGTH, LENGTH), LENGTH);
    /* A file read into its own mapping. */
    EQUAL(pread(other, onto, PAGE, 5 * PAGE), PAGE);
    CHECK(filled(onto, 3, 5 * PAGE, PAGE));
    holds(fd, 3, 0, LENGTH);
}

/* Each sees what the other one does, at once. */
static void processes(void)
{
    warm();
    int fd = borrowed("f", O_CREAT | O_RDWR), there[2], back[2];
    char byte;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    fill(memory, 1, 0, LENGTH);
    EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *map = mapped(fd, MAP_SHARED, LENGTH);
        for (unsigned round = 2; round < 12; round++) {
            EQUAL(read(there[0], &byte, 1), 1);
            CHECK(filled(map, round, 0, LENGTH));
            fill(map, round + 100, 0, LENGTH);
            EQUAL(write(back[1], &byte, 1), 1);
        }
        _exit(0);
    }
    for (unsigned round = 2; round < 12; round++) {
        fill(memory, round, 0, LENGTH);
        EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
        EQUAL(write(there[1], "x", 1), 1);
        EQUAL(read(back[0], &byte, 1), 1);
        EQUAL(pread(fd, memory, LENGTH, 0), LENGTH);
        CHECK(filled(memory, round + 100, 0, LENGTH));
    }
    ends_well(child);
}

/* What copies in the kernel sees what the library has written. */
static void copied(void)
{
    warm();
    int from = borrowed("from", O_CREAT | O_RDWR), to = borrowed("to", O_CREAT | O_RDWR), pair[2];
    for (unsigned round = 1; round < 8; round++) {
        size_t length = round * 3 * PAGE;
        fill(memory, round, 0, length);
        EQUAL(pwrite(from, memory, length, 0), length);
        off_t at = 0;
        EQUAL(lseek(to, 0, SEEK_SET), 0);
        for (size_t sent = 0; sent < length;) {
            ssize_t part = sendfile(to, from, &at, length - sent);
            CHECK(part > 0);
            sent += (size_t)part;
        }
        holds(to, round, 0, length);
        fill(memory, round + 50, 0, length);
        EQUAL(pwrite(from, memory, length, 0), length);
        off_t source = 0, target = LENGTH;
        EQUAL(copy_file_range(from, &source, to, &target, length, 0), length);
        EQUAL(bare_pread(to, memory, length, LENGTH), length);
        CHECK(filled(memory, round + 50, 0, length));
        EQUAL(pread(to, memory, length, LENGTH), length);
        CHECK(filled(memory, round + 50, 0, length));
        CHECK(pipe(pair) == 0);
        at = 0;
        EQUAL(splice(from, &at, pair[1], NULL, PAGE, 0), PAGE);
        EQUAL(read(pair[0], memory, PAGE), PAGE);
        CHECK(filled(memory, round + 50, 0, PAGE));
        fill(memory, round + 90, 0, PAGE);
        EQUAL(write(pair[1], memory, PAGE), PAGE);
        at = 0;
        EQUAL(splice(pair[0], NULL, to, &at, PAGE, 0), PAGE);
        holds(to, round + 90, 0, PAGE);
        close(pair[0]);
        close(pair[1]);
    }
}

static const struct test tests[] = {
    {"shared", shared},
    {"grown", grown},
    {"private", private},
    {"processes", processes},
    {"copied", copied},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
