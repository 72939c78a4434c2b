/* Files that have buffers (of 128 KiB): what is written behind and read ahead, half a buffer at a
   time, while the program goes on. */
#include "check.h"
#include <spawn.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

extern char **environ;

enum { SIZE = 128 * KIB, HALF = SIZE / 2, RECORD = 1000, RECORDS = 700, LENGTH = RECORD * RECORDS };
static unsigned char memory[LENGTH], other[LENGTH];

static int made(const char *name, unsigned seed)
{
    int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    CHECK(fd >= 0);
    fill(memory, seed, 0, LENGTH);
    for (int i = 0; i < RECORDS; i++)
        EQUAL(pwrite(fd, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
    return fd;
}

static void reads(int fd, unsigned seed, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        EQUAL(pread(fd, other, RECORD, (off_t)i * RECORD), RECORD);
        CHECK(filled(other, seed, (uint64_t)i * RECORD, RECORD));
    }
}

/* Everybody sees what was written, once it was to be seen. */
static void seen(void)
{
    uint64_t before = direct();
    int fd = made("seen", 1);
    EQUAL(fsync(fd), 0);
    CHECK(direct() - before <= LENGTH / HALF + 3);
    EQUAL(bare_pread(fd, other, LENGTH, 0), LENGTH);
    CHECK(filled(other, 1, 0, LENGTH));
    fd = made("seen", 2);
    int second = open("seen", O_RDONLY);
    EQUAL(bare_pread(second, other, LENGTH, 0), LENGTH);
    CHECK(filled(other, 2, 0, LENGTH));
    fd = made("seen", 3);
    reads(second, 3, 0, RECORDS);
    fd = made("seen", 4);
    EQUAL(dup2(open("/dev/null", O_RDONLY), fd), fd);
    EQUAL(bare_pread(second, other, LENGTH, 0), LENGTH);
    CHECK(filled(other, 4, 0, LENGTH));
    fd = made("seen", 5);
    pid_t child = fork();
    if (child == 0) {
        EQUAL(bare_pread(second, other, LENGTH, 0), LENGTH);
        CHECK(filled(other, 5, 0, LENGTH));
        reads(fd, 5, 0, RECORDS);
        _exit(0);
    }
    ends_well(child);
}

/* As long as there are children, which see what they are told of, nothing is buffered; then it is again. */
static void children_in(int way)
{
    enum { PIECES = 100 };
    int fd = open("parents", O_CREAT | O_RDWR | O_CLOEXEC, 0600), ends[2], told[2];
    CHECK(fd >= 0 && pipe2(ends, O_CLOEXEC) == 0 && pipe(told) == 0);
    fill(memory, (unsigned)way, 0, LENGTH);
    for (int i = 0; i < PIECES; i++) EQUAL(pwrite(fd, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
    char *const waits[] = {"cat", NULL};
    pid_t child;
    posix_spawn_file_actions_t actions;
    switch (way) {
    case 0:
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
        EQUAL(posix_spawnp(&child, waits[0], &actions, NULL, waits, environ), 0);
        posix_spawn_file_actions_destroy(&actions);
        break;
    case 1:
        child = vfork();
        if (child == 0) {
            dup2(ends[0], 0);
            execvp(waits[0], waits);
            _exit(1);
        }
        break;
    default:
        child = fork();
        if (child == 0) {
            int own = open("childs", O_CREAT | O_RDWR, 0600);
            for (int i = 0; i < PIECES; i++)
                EQUAL(pwrite(own, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
            EQUAL(write(told[1], "x", 1), 1);
            close(ends[1]);
            EQUAL(read(ends[0], other, 1), 0);
            _exit(0);
        }
        EQUAL(read(told[0], other, 1), 1);
        EQUAL(bare_pread(open("childs", O_RDONLY), other, LENGTH, 0), PIECES * RECORD);
        CHECK(filled(other, (unsigned)way, 0, PIECES * RECORD));
    }
    EQUAL(bare_pread(fd, other, LENGTH, 0), PIECES * RECORD);
    CHECK(filled(other, (unsigned)way, 0, PIECES * RECORD));
    for (int i = PIECES; i < 2 * PIECES; i++) {
        EQUAL(pwrite(fd, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
        EQUAL(bare_pread(fd, other, RECORD, (off_t)i * RECORD), RECORD);
        CHECK(filled(other, (unsigned)way, (uint64_t)i * RECORD, RECORD));
    }
    close(ends[0]);
    close(ends[1]);
    /* Ended, but nobody has asked for it yet. */
    siginfo_t info;
    EQUAL(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    uint64_t before = direct();
    for (int i = 0; i < 20; i++) EQUAL(pwrite(fd, memory, RECORD, 0), RECORD);
    CHECK(way == 2 || direct() - before >= 20);
    ends_well(child);
    /* What fork has made has the descriptor too; not so another one. */
    int later = open("parents", O_RDWR | O_CLOEXEC);
    before = direct();
    for (int i = 0; i < RECORDS; i++) EQUAL(pwrite(later, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
    if (way < 2)
        for (int i = 0; i < RECORDS; i++) EQUAL(pwrite(fd, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
    CHECK(direct() - before <= 2 * LENGTH / HALF + 20);
    EQUAL(fsync(fd), 0);
    EQUAL(fsync(later), 0);
    EQUAL(bare_pread(fd, other, LENGTH, 0), LENGTH);
    CHECK(filled(other, (unsigned)way, 0, LENGTH));
    EQUAL(unlink("parents"), 0);
    close(fd);
    close(later);
}

static void children(void)
{
    for (int way = 0; way < 3; way++) children_in(way);
}

/* A descriptor that the program was given, beside one that it opened itself. */
static void given(void)
{
    const char *number = getenv("GIVEN");
    if (!number) {
        char text[20];
        snprintf(text, sizeof text, "%d", made("given", 1));
        CHECK(setenv("GIVEN", text, 1) == 0);
        execl("/proc/self/exe", "buffers", "given", NULL);
        CHECK(!"exec");
    }
    int inherited = atoi(number), fd = open("given", O_RDWR);
    CHECK(fd >= 0);
    reads(fd, 1, 0, 20);
    for (int round = 1; round < 10; round++) {
        memset(memory, round, RECORD);
        EQUAL(pwrite(fd, memory, RECORD, round * RECORD), RECORD);
        EQUAL(pread(inherited, other, RECORD, round * RECORD), RECORD);
        CHECK(memcmp(other, memory, RECORD) == 0);
        memset(memory, -round, RECORD);
        EQUAL(pwrite(inherited, memory, RECORD, round * RECORD), RECORD);
        EQUAL(pread(fd, other, RECORD, round * RECORD), RECORD);
        CHECK(memcmp(other, memory, RECORD) == 0);
    }
}

/* The same bytes again and again, in pieces that end anywhere: the last ones are right. */
static void over(void)
{
    int fd = made("over", 1);
    for (unsigned round = 2; round < 30; round++) {
        int from = (int)(round * 7919 % (LENGTH - 2 * HALF)), length = (int)(round * 104729 % (2 * HALF));
        fill(memory + from, round, (uint64_t)from, (size_t)length);
        for (int done = 0; done < length;) {
            int now = 1 + (int)(round * 613 % 5000);
            if (now > length - done) now = length - done;
            EQUAL(pwrite(fd, memory + from + done, (size_t)now, from + done), now);
            done += now;
        }
        if (round % 5 == 0) {
            int at = (int)(round * 15485863 % (LENGTH - 300));
            EQUAL(pread(fd, other, 300, at), 300);
            CHECK(memcmp(other, memory + at, 300) == 0);
        }
    }
    EQUAL(fdatasync(fd), 0);
    EQUAL(bare_pread(fd, other, LENGTH, 0), LENGTH);
    CHECK(memcmp(other, memory, LENGTH) == 0);
}

/* What the program itself takes away is not read any more, though it was read ahead. */
static void cut(void)
{
    for (int way = 0; way < 4; way++) {
        int fd = made("cut", 1);
        EQUAL(fsync(fd), 0);
        reads(fd, 1, 0, 20);
        switch (way) {
        case 0: EQUAL(ftruncate(fd, 20 * RECORD), 0); break;
        case 1: EQUAL(truncate("cut", 20 * RECORD), 0); break;
        case 2: EQUAL(syscall(SYS_ftruncate, fd, 20 * RECORD), 0); break;
        default: EQUAL(fallocate(fd, 3 /* PUNCH_HOLE, KEEP_SIZE */, 20 * RECORD, LENGTH), 0); break;
        }
        EQUAL(pread(fd, other, RECORD, 20 * RECORD), way < 3 ? 0 : RECORD);
        CHECK(way < 3 || (other[0] == 0 && memcmp(other, other + 1, RECORD - 1) == 0));
        close(fd);
    }
}

/* What the kernel changes for the program is read as it is then, though it was read before: in a row, and
   by itself. */
static void changed(void)
{
    enum { FIRST = 10 * RECORD, SECOND = 500 * RECORD };
    static unsigned char news[RECORD] = {9, 9};
    int from = open("source", O_CREAT | O_RDWR, 0600);
    for (int i = 0; i < 2; i++) EQUAL(pwrite(from, news, RECORD, i * RECORD), RECORD);
    EQUAL(fsync(from), 0);
    for (int way = 0; way < 5; way++) {
        int fd = made("changed", 1);
        EQUAL(fsync(fd), 0);
        FILE *stream = fopen("changed", "r+");
        CHECK(stream != NULL);
        reads(fd, 1, 0, 10);
        reads(fd, 1, 500, 1);
        for (off_t at = FIRST; at <= SECOND; at += SECOND - FIRST) {
            struct iovec piece = {news, RECORD};
            off_t in = 0, out = at;
            int ends[2];
            switch (way) {
            case 0: EQUAL(copy_file_range(from, &in, fd, &out, RECORD, 0), RECORD); break;
            case 1: EQUAL(pwritev2(fd, &piece, 1, at, RWF_DSYNC), RECORD); break;
            case 2:
                EQUAL(lseek(fd, at, SEEK_SET), at);
                EQUAL(sendfile(fd, from, &in, RECORD), RECORD);
                break;
            case 3:
                EQUAL(pipe(ends), 0);
                EQUAL(write(ends[1], news, RECORD), RECORD);
                EQUAL(splice(ends[0], NULL, fd, &out, RECORD, 0), RECORD);
                break;
            default:
                EQUAL(fseek(stream, at, SEEK_SET), 0);
                EQUAL(fwrite(news, 1, RECORD, stream), RECORD);
                if (at == SECOND) EQUAL(fclose(stream), 0);
            }
        }
        for (off_t at = FIRST; at <= SECOND; at += SECOND - FIRST) {
            EQUAL(pread(fd, other, RECORD, at), RECORD);
            CHECK(memcmp(other, news, RECORD) == 0);
        }
        close(fd);
    }
}

/* A program that computes for longer than the servers wait for a word, with both halves under way. */
static void pauses(void)
{
    int fd = open("pauses", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    fill(memory, 1, 0, LENGTH);
    for (int i = 0; i < RECORDS; i++) {
        EQUAL(pwrite(fd, memory + i * RECORD, RECORD, (off_t)i * RECORD), RECORD);
        if (i == 100 || i == 500) sleep(3);
    }
    EQUAL(fsync(fd), 0);
    reads(fd, 1, 0, 150);
    sleep(3);
    reads(fd, 1, 150, RECORDS - 150);
    EQUAL(bare_pread(fd, other, LENGTH, 0), LENGTH);
    CHECK(filled(other, 1, 0, LENGTH));
}

/* What is read ahead while something is not yet stored there, or behind the end that the file still has. */
static void overtaken(void)
{
    int fd = made("overtaken", 1);
    EQUAL(fsync(fd), 0);
    reads(fd, 1, 0, 20);
    memset(memory, 9, RECORD);
    EQUAL(pwrite(fd, memory, RECORD, 70 * RECORD), RECORD);
    reads(fd, 1, 20, 50);
    EQUAL(pread(fd, other, RECORD, 70 * RECORD), RECORD);
    CHECK(memcmp(other, memory, RECORD) == 0);
    reads(fd, 1, 71, 500);
    EQUAL(pwrite(fd, memory, RECORD, LENGTH), RECORD);
    reads(fd, 1, 571, RECORDS - 571);
    EQUAL(pread(fd, other, RECORD, LENGTH), RECORD);
    CHECK(memcmp(other, memory, RECORD) == 0);
    EQUAL(pread(fd, other, RECORD, LENGTH + RECORD), 0);
}

/* What was written over what was read ahead, and is read again when that is not believed any more. */
static void long_after(void)
{
    enum { STEP = 40 * KIB };
    int fd = made("after", 1);
    EQUAL(fsync(fd), 0);
    for (off_t round = 2; round < 5; round++) {
        for (off_t at = 0; at <= STEP; at += STEP) {
            EQUAL(pread(fd, other, STEP, at), STEP);
            CHECK(memcmp(other, memory + at, STEP) == 0);
        }
        off_t at = round * 10 * RECORD;
        fill(memory + at, (unsigned)round, (uint64_t)at, RECORD);
        EQUAL(pwrite(fd, memory + at, RECORD, at), RECORD);
        usleep(150 * 1000);
        EQUAL(pread(fd, other, STEP, 0), STEP);
        CHECK(memcmp(other, memory, STEP) == 0);
    }
}

/* Where the case's random numbers begin; each history has its own. */
static uint64_t state = 1;

static uint64_t chosen(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* Rows of reads, writes and both, here and there in a file that grows. */
static void to_and_fro(void)
{
    enum { ROOM = 600 * KIB };
    unsigned char *file = calloc(1, ROOM);
    int fd = open("fro", O_CREAT | O_RDWR, 0600);
    CHECK(file && fd >= 0);
    size_t size = 0;
    for (int row = 0; row < 3000; row++) {
        size_t at = chosen(3) ? chosen(16) * 37 * KIB : chosen(ROOM), length = 1 + chosen(chosen(4) ? 3000 : 40 * KIB);
        uint64_t kind = chosen(4), count = 1 + chosen(chosen(4) ? 5 : 60);
        for (uint64_t i = 0; i < count && at + length <= ROOM; i++) {
            if (kind != 1) {
                size_t there = at >= size ? 0 : size - at < length ? size - at : length;
                EQUAL(pread(fd, other, length, (off_t)at), there);
                CHECK(memcmp(other, file + at, there) == 0);
            }
            /* Nothing, what was read, or something farther on. */
            size_t to = kind == 3 ? at + chosen(150 * KIB) : at;
            if (kind != 0 && to + length <= ROOM && (kind != 3 || chosen(8) == 0)) {
                fill(file + to, (unsigned)row, to, length);
                EQUAL(pwrite(fd, file + to, length, (off_t)to), length);
                if (to + length > size) size = to + length;
            }
            at += length;
        }
        if (chosen(100) == 0) EQUAL(ftruncate(fd, (off_t)size), 0);
        /* What was read is not believed for so long. */
        if (chosen(400) == 0) usleep(120 * 1000);
    }
    EQUAL(fsync(fd), 0);
    EQUAL(bare_pread(fd, file, ROOM, 0), size);
    EQUAL(pread(fd, other, size, 0), size);
    CHECK(memcmp(other, file, size) == 0);
}

/* A history of a program that pauses now and then, for about as long as what it has read is believed: rows
   of reads, longer and shorter than what is kept around a place, forwards and backwards, and between them
   what changes the file, by one descriptor or the other. A narrow one comes back to the same places soon. */
static void with_pauses(const char *name, int narrow, double seconds)
{
    enum { ROOM = 600 * KIB };
    unsigned char *file = calloc(1, ROOM);
    int fds[2] = {open(name, O_CREAT | O_RDWR, 0600), open(name, O_RDWR)};
    CHECK(file && fds[0] >= 0 && fds[1] >= 0);
    size_t size = 0;
    double until = now() + seconds;
    for (unsigned step = 1; now() < until; step++) {
        int fd = fds[chosen(4) == 0];
        size_t length = chosen(2) ? 33 * KIB + chosen((narrow ? 30 : 60) * KIB) : 1 + chosen(6000);
        size_t at = chosen(8) ? chosen(narrow ? 4 : 30) * 20 * KIB : chosen(ROOM);
        uint64_t count = 1 + chosen(5), kind = chosen(16);
        if (kind < 6) {
            int back = chosen(4) == 0;
            for (uint64_t i = 0; i < count && at < ROOM; i++) {
                size_t there = at >= size ? 0 : size - at < length ? size - at : length;
                EQUAL(pread(fd, other, length, (off_t)at), there);
                CHECK(memcmp(other, file + at, there) == 0);
                at = !back ? at + length : at > length ? at - length : 0;
            }
        } else if (kind < 12) {
            for (uint64_t i = 0; i < count && at + length <= ROOM; i++, at += length) {
                fill(file + at, step, at, length);
                EQUAL(pwrite(fd, file + at, length, (off_t)at), length);
                if (at + length > size) size = at + length;
            }
        } else if (kind == 12) {
            EQUAL(fsync(fd), 0);
        } else if (kind == 13 && chosen(4) == 0) {
            size_t end = chosen(ROOM);
            EQUAL(ftruncate(fd, (off_t)end), 0);
            if (end < size) memset(file + end, 0, size - end);
            size = end;
        } else {
            usleep((useconds_t)((60 + chosen(50)) * 1000));
        }
    }
    EQUAL(fsync(fds[0]), 0);
    EQUAL(bare_pread(fds[1], other, ROOM, 0), size);
    CHECK(memcmp(other, file, size) == 0);
}

/* Many such histories at once, since they wait most of the time: each in a process that has buffers, which
   children of fork do not. HISTORY_SECONDS makes them longer. */
static void histories(void)
{
    enum { HISTORIES = 12 };
    const char *seed = getenv("HISTORY_SEED"), *seconds = getenv("HISTORY_SECONDS");
    if (seed) {
        char name[40];
        snprintf(name, sizeof name, "history %s", seed);
        unsigned long long number = strtoull(seed, NULL, 10);
        state = number * 0x9E3779B97F4A7C15u;
        with_pauses(name, number % 3 != 0, seconds ? atof(seconds) : 6);
        return;
    }
    pid_t children[HISTORIES];
    for (int i = 0; i < HISTORIES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            char text[20];
            snprintf(text, sizeof text, "%d", i + 1);
            CHECK(setenv("HISTORY_SEED", text, 1) == 0);
            execl("/proc/self/exe", "buffers", "histories", NULL);
            CHECK(!"exec");
        }
    }
    for (int i = 0; i < HISTORIES; i++) ends_well(children[i]);
}

/* Who comes back to the same places asks the pool seldom, and what he writes there goes to it late. */
static void again(void)
{
    enum { PLACES = 5, PIECE = 800, ROUNDS = 2000 };
    int fd = made("again", 1);
    EQUAL(fsync(fd), 0);
    uint64_t before = direct();
    double begun = now();
    for (int round = 0; round < ROUNDS; round++) {
        for (int place = 1; place <= PLACES; place++) {
            off_t at = place * 101 * KIB + 20;
            EQUAL(pread(fd, other, PIECE, at), PIECE);
            CHECK(memcmp(other, memory + at, PIECE) == 0);
        }
        fill(memory + 20, (unsigned)round, 20, PIECE);
        EQUAL(pwrite(fd, memory + 20, PIECE, 20), PIECE);
    }
    /* As long as they are believed. */
    CHECK((double)(direct() - before) <= (PLACES + 1) * (2 + (now() - begun) / 0.1));
    EQUAL(fsync(fd), 0);
    EQUAL(bare_pread(fd, other, LENGTH, 0), LENGTH);
    CHECK(memcmp(other, memory, LENGTH) == 0);
}

/* A pool without room: what could not be stored is told, by a later write or at the latest by fsync,
   once; and what was stored can be read. */
static void full(void)
{
    int fd = open("full", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    memset(memory, 7, sizeof memory);
    long long records = 0;
    for (; records < 400 * 1000; records++) {
        ssize_t written = pwrite(fd, memory, RECORD, (off_t)(records * RECORD));
        if (written < 0) break;
        EQUAL(written, RECORD);
    }
    EQUAL(errno, ENOSPC);
    CHECK(records < 300 * 1000);
    REFUSED(fsync(fd), ENOSPC);
    EQUAL(fsync(fd), 0);
    EQUAL(pread(fd, other, RECORD, 50 * MIB), RECORD);
    CHECK(memcmp(other, memory, RECORD) == 0);
    EQUAL(unlink("full"), 0);
    EQUAL(close(fd), 0);
}

/* The servers end: that is an error, and soon. */
static void until_lost(void)
{
    int fd = made("lost", 1);
    ready();
    for (int i = 0;; i = (i + 1) % RECORDS) {
        double begun = now();
        ssize_t written = pwrite(fd, memory, RECORD, (off_t)i * RECORD);
        CHECK(now() - begun < 30);
        if (written == RECORD) continue;
        EQUAL(errno, EIO);
        REFUSED(fsync(fd), EIO);
        return;
    }
}

static const struct test tests[] = {
    {"seen", seen},
    {"children", children},
    {"given", given},
    {"over", over},
    {"cut", cut},
    {"changed", changed},
    {"overtaken", overtaken},
    {"long_after", long_after},
    {"to_and_fro", to_and_fro},
    {"histories", histories},
    {"again", again},
    {"pauses", pauses},
    {"full", full},
    {"until_lost", until_lost},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
