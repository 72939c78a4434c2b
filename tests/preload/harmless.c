/* What a program sees of the library where it has nothing to do: nothing. And descriptors that are
   closed and replaced in every way. */
#include "check.h"

#include <dirent.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { LENGTH = 100 * KIB };
static unsigned char memory[LENGTH];

#define KEEPS(call, result)                                                                          \
    do {                                                                                             \
        errno = 77;                                                                                  \
        EQUAL(call, result);                                                                         \
        EQUAL(errno, 77);                                                                            \
    } while (0)

static void errno_of_success(void)
{
    for (int round = 0; round < 2; round++) {
        const char *path = round ? outside("f") : "f";
        errno = 77;
        int fd = open(path, O_CREAT | O_RDWR, 0600);
        CHECK(fd >= 0);
        EQUAL(errno, 77);
        for (int i = 0; i < 8; i++) {
            KEEPS(pwrite(fd, memory, LENGTH, 0), LENGTH);
            KEEPS(pread(fd, memory, LENGTH, 0), LENGTH);
            KEEPS(lseek(fd, 0, SEEK_SET), 0);
            KEEPS(read(fd, memory, 10), 10);
            KEEPS(write(fd, memory, 10), 10);
        }
        errno = 77;
        int other = dup(fd);
        KEEPS(dup2(fd, other), other);
        KEEPS(fcntl(fd, F_GETFD), 0);
        KEEPS(ftruncate(fd, 10), 0);
        KEEPS(fsync(fd), 0);
        void *map = mmap(NULL, 10, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED);
        EQUAL(errno, 77);
        KEEPS(close(other), 0);
        KEEPS(close(fd), 0);
        FILE *file = fopen(path, "r+");
        CHECK(file != NULL);
        KEEPS(fclose(file), 0);
    }
    int pair[2];
    CHECK(pipe(pair) == 0);
    KEEPS(write(pair[1], "abc", 3), 3);
    KEEPS(read(pair[0], memory, 10), 3);
    KEEPS(close(pair[0]), 0);
    KEEPS(close(pair[1]), 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    KEEPS(write(pair[1], "abc", 3), 3);
    KEEPS(read(pair[0], memory, 10), 3);
    KEEPS(system("true"), 0);
    int terminal[2];
    CHECK(openpty(&terminal[0], &terminal[1], NULL, NULL, NULL) == 0);
    KEEPS(write(terminal[0], "abc\n", 4), 4);
    KEEPS(read(terminal[1], memory, 10), 4);
    int null = open("/dev/zero", O_RDWR);
    KEEPS(write(null, "abc", 3), 3);
    KEEPS(read(null, memory, 10), 10);
    KEEPS(close_range(40, 50, 0), 0);
    pid_t child = fork();
    if (child == 0) _exit(errno != 77);
    ends_well(child);
}

/* A number that was the pool's may be anything's the next moment. */
static void numbers_of_others(void)
{
    warm();
    int pair[2];
    for (int round = 0; round < 20; round++) {
        FILE *file = fopen("f", "w+");
        CHECK(file != NULL);
        int fd = fileno(file);
        fill(memory, 1, 0, LENGTH);
        EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
        EQUAL(pread(fd, memory, LENGTH, 0), LENGTH);
        if (round % 4 == 0) EQUAL(fclose(file), 0);
        if (round % 4 == 1) EQUAL(syscall(SYS_close, fd), 0);
        if (round % 4 == 2) EQUAL(syscall(SYS_close_range, fd, fd, 0), 0);
        if (round % 4 == 3) {
            /* A stream begun anew has the number, and another file of the pool. */
            file = freopen("g", "w+", file);
            CHECK(file != NULL);
            fd = fileno(file);
            DIRECTLY(1, EQUAL(pwrite(fd, memory, LENGTH, 7), LENGTH));
            holds(fd, 1, 0, 0);
            EQUAL(fclose(file), 0);
            continue;
        }
        /* Of two at least one has the number. */
        CHECK(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        CHECK(pair[0] == fd || pair[1] == fd);
        EQUAL(write(pair[0], memory, 1000), 1000);
        EQUAL(read(pair[1], memory, 2000), 1000);
        REFUSED(pread(fd, memory, 10, 0), ESPIPE);
        EQUAL(close(pair[0]), 0);
        EQUAL(close(pair[1]), 0);
        file = fopen(outside("f"), "w+");
        CHECK(fileno(file) == fd);
        EQUAL(write(fd, memory, 1000), 1000);
        EQUAL(bare_pread(fd, memory, 2000, 0), 1000);
        EQUAL(fclose(file), 0);
    }
}

/* Whatever a program does to all numbers there are, the pool goes on, and no file of the program's
   finds what was meant for the pool's servers. */
static void all_numbers(void)
{
    warm();
    for (int round = 0; round < 6; round++) {
        int fd = borrowed("f", O_CREAT | O_RDWR);
        EQUAL(dup2(fd, 3) == 3 || fd == 3, 1);
        fill(memory, (unsigned)round, 0, LENGTH);
        EQUAL(pwrite(3, memory, LENGTH, 0), LENGTH);
        int foreign = open(outside("foreign"), O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600);
        struct rlimit limit;
        EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
        int end = limit.rlim_cur < 5000 ? (int)limit.rlim_cur : 5000;
        switch (round) {
        case 0: closefrom(3); break;
        case 1: EQUAL(close_range(3, ~0u, 0), 0); break;
        case 2:
            for (int i = 3; i < end; i++) close(i);
            break;
        case 3:
            for (int i = 3; i < end; i++)
                if (i != foreign) dup2(foreign, i);
            break;
        case 4:
            EQUAL(syscall(SYS_close_range, 3, ~0u, 0), 0);
            /* All that were free are now the program's. */
            foreign = open(outside("foreign"), O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600);
            for (int i = 0; i < end - 20; i++)
                if (dup(foreign) < 0) break;
            break;
        case 5: {
            DIR *directory = opendir("/proc/self/fd");
            for (struct dirent *entry; (entry = readdir(directory));)
                if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(directory)) close(atoi(entry->d_name));
            closedir(directory);
        }
        }
        if (round == 3 || round == 4) close_range(3, 200, 0);
        for (int again = 0; again < 3; again++) {
            fd = open("f", O_RDWR);
            CHECK(fd >= 0);
            holds(fd, (unsigned)round, 0, LENGTH);
            EQUAL(pwrite(fd, memory, LENGTH, LENGTH), LENGTH);
            EQUAL(close(fd), 0);
        }
        struct stat status;
        EQUAL(stat(outside("foreign"), &status), 0);
        EQUAL(status.st_size, 0);
        if (round == 3 || round == 4) close_range(3, ~0u, 0);
    }
}

/* How many descriptors there are to be had. */
static int to_be_had(void)
{
    int fds[64], count = 0;
    while (count < 64 && (fds[count] = open("f", O_RDONLY)) >= 0) count++;
    EQUAL(errno, EMFILE);
    for (int i = 0; i < count; i++) close(fds[i]);
    return count;
}

/* A program that may have few descriptors finds all of them. */
static void few_descriptors(void)
{
    struct rlimit limit = {20, 20};
    EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    int count = to_be_had();
    for (unsigned i = 0; i < 10; i++) {
        fill(memory, i, 0, LENGTH);
        EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
        holds(fd, i, 0, LENGTH);
    }
    EQUAL(to_be_had(), count);
    holds(fd, 9, 0, LENGTH);
}

static double ns_of_pread(ssize_t (*call)(int, void *, size_t, off_t), int fd)
{
    enum { CALLS = 200000 };
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int i = 0; i < CALLS; i++)
            if (call(fd, memory, 1, 0) != 1) CHECK(0);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        double ns = ((double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec)) / CALLS;
        if (ns < best) best = ns;
    }
    return best;
}

static void cost(void)
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) fd = open(outside("cost"), O_CREAT | O_RDWR, 0600);
    EQUAL(write(fd, "x", 1), 1);
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    ssize_t (*bare)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))(uintptr_t)dlsym(libc, "pread");
    CHECK(bare != NULL && bare != pread);
    double with = ns_of_pread(pread, fd), without = ns_of_pread(bare, fd);
    printf("1-byte pread of another file: %.0f ns with the library, %.0f ns without\n", with, without);
    CHECK(with - without < 1000);
}

/* Streams, and calls on their descriptors in between. */
static void streams(void)
{
    warm();
    FILE *file = fopen("f", "w+");
    CHECK(file != NULL);
    int fd = fileno(file);
    borrow(fd);
    for (unsigned i = 0; i < 50; i++) {
        fill(memory, 1, (uint64_t)i * 3000, 3000);
        if (i % 2) {
            EQUAL(fflush(file), 0);
            EQUAL(write(fd, memory, 3000), 3000);
        } else {
            EQUAL(fwrite(memory, 1, 3000, file), 3000);
        }
    }
    EQUAL(fflush(file), 0);
    EQUAL(ftell(file), 150000);
    holds(fd, 1, 0, 150000);
    rewind(file);
    EQUAL(fread(memory, 1, 90000, file), 90000);
    CHECK(filled(memory, 1, 0, 90000));
    EQUAL(fseek(file, 1000, SEEK_SET), 0);
    EQUAL(fgetc(file), byte_at(1, 1000));
    EQUAL(fseek(file, 0, SEEK_END), 0);
    EQUAL(ftell(file), 150000);
    EQUAL(fclose(file), 0);
    file = fopen("f", "a+");
    fd = fileno(file);
    borrow(fd);
    fill(memory, 1, 150000, LENGTH);
    EQUAL(fwrite(memory, 1, 5000, file), 5000);
    EQUAL(fflush(file), 0);
    EQUAL(write(fd, memory + 5000, 5000), 5000);
    EQUAL(fwrite(memory + 10000, 1, 5000, file), 5000);
    EQUAL(fclose(file), 0);
    file = fopen("f", "r");
    holds(fileno(file), 1, 150000, 15000);
    EQUAL(fseek(file, 0, SEEK_END), 0);
    EQUAL(ftell(file), 165000);
    /* The end, which another descriptor moves on. */
    EQUAL(fgetc(file), EOF);
    fd = borrowed("f", O_WRONLY);
    fill(memory, 1, 165000, 10);
    DIRECTLY(1, EQUAL(pwrite(fd, memory, 10, 165000), 10));
    clearerr(file);
    EQUAL(fgetc(file), byte_at(1, 165000));
    CHECK(freopen("f", "r", stdin) != NULL);
    EQUAL(fgetc(stdin), byte_at(1, 0));
    char *line = NULL;
    size_t room = 0;
    FILE *made = fdopen(dup(fd), "w");
    EQUAL(fprintf(made, "%s\n", "line"), 5);
    EQUAL(fclose(made), 0);
    FILE *lines = fopen("f", "r");
    EQUAL(getline(&line, &room, lines), 5);
    free(line);
}

/* Connections of the library's. */
static int connections(void)
{
    DIR *list = opendir("/proc/self/fd");
    CHECK(list != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        int fd = atoi(entry->d_name);
        struct stat stat;
        /* They lie out of the way of a program's own, of which some may be inherited. */
        count += fd >= 100 && fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode);
    }
    EQUAL(closedir(list), 0);
    return count;
}

/* As cat and the like do: what they read is less than what they ask for. */
static void small_files_in_large_pieces(void)
{
    enum { ASKED = 128 * KIB };
    fill(memory, 1, 0, 100);
    int fd = open("small", O_CREAT | O_WRONLY, 0644);
    EQUAL(write(fd, memory, 100), 100);
    EQUAL(close(fd), 0);
    char *room = malloc(ASKED);
    CHECK(room != NULL);
    DIRECTLY(0, for (int i = 0; i < 20; i++) {
        fd = open("small", O_RDONLY);
        EQUAL(read(fd, room, ASKED), 100);
        EQUAL(read(fd, room, ASKED), 0);
        EQUAL(close(fd), 0);
    });
    CHECK(memcmp(room, memory, 100) == 0);
    EQUAL(connections(), 0);
    /* With what is large it soon pays. */
    fd = open("large", O_CREAT | O_RDWR, 0644);
    EQUAL(ftruncate(fd, 4 * ASKED), 0);
    EQUAL(close(fd), 0);
    fd = open("large", O_RDONLY);
    for (int i = 0; i < 32; i++) EQUAL(pread(fd, room, ASKED, 0), ASKED);
    DIRECTLY(3, for (int i = 0; i < 3; i++) EQUAL(read(fd, room, ASKED), ASKED));
    CHECK(connections() > 0);
    EQUAL(close(fd), 0);
    free(room);
}

static const struct test tests[] = {
    {"errno_of_success", errno_of_success},
    {"numbers_of_others", numbers_of_others},
    {"all_numbers", all_numbers},
    {"few_descriptors", few_descriptors},
    {"cost", cost},
    {"streams", streams},
    {"small_files_in_large_pieces", small_files_in_large_pieces},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
