/* Programs of one purpose each, which the harness puts into odd surroundings. */
#include "check.h"

enum { LENGTH = 100 * KIB };
static unsigned char memory[LENGTH];

static void round_trip(int fd, unsigned seed)
{
    for (uint64_t part = 0; part < 20; part++) {
        fill(memory, seed, part * LENGTH, LENGTH);
        EQUAL(write(fd, memory, LENGTH), LENGTH);
    }
    for (uint64_t part = 0; part < 20; part++) holds(fd, seed, part * LENGTH, LENGTH);
    EQUAL(lseek(fd, 0, SEEK_SET), 0);
}

/* Right, whoever does it. */
static void once(void)
{
    int fd = open("once", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    round_trip(fd, 1);
    round_trip(fd, 2);
}

static void by_library(void)
{
    uint64_t before = direct();
    once();
    CHECK(direct() - before > 40);
}

/* Longer than leave to use a file lasts. */
static void for_long(void)
{
    warm();
    int fd = borrowed("long", O_CREAT | O_RDWR), log = borrowed("log", O_CREAT | O_RDWR | O_APPEND);
    double end = now() + 3;
    for (unsigned seed = 0; now() < end; seed++) {
        round_trip(fd, seed);
        usleep(seed % 8 == 7 ? 700000 : 20000);
        /* Still by the library. */
        DIRECTLY(1, EQUAL(pread(fd, memory, 10, 0), 10));
        DIRECTLY(1, EQUAL(write(log, memory, 10), 10));
    }
}

static void for_ever(void)
{
    /* There may be several of it, so nothing can be said of who did how much. */
    char name[32];
    snprintf(name, sizeof name, "ever%d", (int)getpid());
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    round_trip(fd, 0);
    ready();
    for (unsigned seed = 0;; seed++) round_trip(fd, seed);
}

/* The servers end: that is an error, and soon. */
static void until_lost(void)
{
    warm();
    int fd = borrowed("lost", O_CREAT | O_RDWR);
    ready();
    for (;;) {
        double begun = now();
        errno = 0;
        if (pwrite(fd, memory, LENGTH, 0) != LENGTH) {
            EQUAL(errno, EIO);
            CHECK(now() - begun < 15);
            REFUSED(pread(fd, memory, LENGTH, 0), EIO);
            return;
        }
    }
}

/* The mount goes, and hears of nothing any more: a number that was a file's of the pool is none now. */
static void until_unmounted(void)
{
    warm();
    int fd = borrowed("left", O_CREAT | O_RDWR);
    DIRECTLY(1, EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH));
    ready();
    while (access(outside("go"), F_OK) != 0) usleep(1000);
    /* The kernel says that nobody was there to hear of it, and closes it. */
    unseen(SYS_close, fd, 0, 0);
    EQUAL(unseen(SYS_openat, AT_FDCWD, (long)outside("go"), O_RDWR), fd);
    DIRECTLY(0, EQUAL(pwrite(fd, "here", 4, 0), 4));
    struct stat status;
    EQUAL(fstat(fd, &status), 0);
    EQUAL(status.st_size, 4);
}

/* Whoever opens anything after others have written sees what they wrote, whatever was read ahead. */
static void reads_ahead(void)
{
    warm();
    int fd = borrowed("told", O_RDONLY);
    for (uint64_t at = 0; at < 200; at += 100) {
        EQUAL(pread(fd, memory, 100, (off_t)at), 100);
        EQUAL(memory[0], 'a');
    }
    CHECK(mkdir(outside("ready"), 0700) == 0);
    while (access(outside("go"), F_OK) != 0) usleep(1000);
    int other = open("/dev/null", O_RDONLY);
    CHECK(other >= 0);
    EQUAL(pread(fd, memory, 100, 200), 100);
    EQUAL(memory[0], 'b');
}

/* Whoever reads the same place again and again sees what others write there, though he opens nothing. */
static void looks_again(void)
{
    warm();
    int fd = borrowed("told", O_RDONLY);
    /* Of these the first is read ahead, the other by itself. */
    for (off_t at = 0; at <= 500; at += 500) {
        EQUAL(pread(fd, memory, 100, at), 100);
        EQUAL(memory[0], 'a');
    }
    CHECK(mkdir(outside("ready"), 0700) == 0);
    double begun = now();
    for (off_t at = 0; at <= 500; at += 500) {
        do {
            CHECK(now() - begun < 10);
            EQUAL(pread(fd, memory, 100, at), 100);
        } while (memory[0] != 'b');
    }
}

static const struct test tests[] = {
    {"once", once},
    {"by_library", by_library},
    {"for_long", for_long},
    {"for_ever", for_ever},
    {"until_lost", until_lost},
    {"until_unmounted", until_unmounted},
    {"reads_ahead", reads_ahead},
    {"looks_again", looks_again},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
