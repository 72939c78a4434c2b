/* Every form of open, read and write does what the kernel does. */
#include "check.h"

#include <sys/resource.h>
#include <sys/uio.h>

/* As programs get it from the C library under this name, whether or not its headers declare it. */
#define FORM(result, name, ...)                                                                      \
    result (*name##_)(__VA_ARGS__) = (result(*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_DEFAULT, #name);  \
    CHECK(name##_ != NULL)

/* The descriptor is the library's from now on. */
static void works(int fd)
{
    static char memory[BORROWED];
    CHECK(fd >= 0);
    borrow(fd);
    fill(memory, 7, 0, sizeof memory);
    DIRECTLY(1, EQUAL(pwrite(fd, memory, sizeof memory, 0), sizeof memory));
    memset(memory, 0, sizeof memory);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR) {
        DIRECTLY(1, EQUAL(pread(fd, memory, sizeof memory, 0), sizeof memory));
        CHECK(filled(memory, 7, 0, sizeof memory));
        EQUAL(bare_pread(fd, memory, sizeof memory, 0), sizeof memory);
        CHECK(filled(memory, 7, 0, sizeof memory));
    }
    EQUAL(close(fd), 0);
}

static void opens(void)
{
    warm();
    umask(0);
    FORM(int, open, const char *, int, ...);
    FORM(int, open64, const char *, int, ...);
    FORM(int, __open, const char *, int, ...);
    FORM(int, __open64, const char *, int, ...);
    FORM(int, __open_2, const char *, int);
    FORM(int, __open64_2, const char *, int);
    FORM(int, openat, int, const char *, int, ...);
    FORM(int, openat64, int, const char *, int, ...);
    FORM(int, __openat_2, int, const char *, int);
    FORM(int, __openat64_2, int, const char *, int);
    FORM(int, creat, const char *, mode_t);
    FORM(int, creat64, const char *, mode_t);

    works(open_("a", O_RDWR | O_CREAT | O_EXCL, 0640));
    works(open64_("a", O_RDWR));
    works(__open_("a", O_RDWR));
    works(__open64_("a", O_RDWR | O_CREAT, 0600));
    works(__open_2_("a", O_RDWR));
    works(__open64_2_("a", O_RDWR));
    works(creat_("b", 0604));
    works(creat64_("c", 0620));
    struct stat status;
    EQUAL(stat("a", &status), 0);
    EQUAL(status.st_mode, S_IFREG | 0640);
    EQUAL(stat("b", &status), 0);
    EQUAL(status.st_mode, S_IFREG | 0604);
    EQUAL(stat("c", &status), 0);
    EQUAL(status.st_mode, S_IFREG | 0620);

    EQUAL(mkdir("d", 0755), 0);
    int directory = open_("d", O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0);
    works(openat_(directory, "a", O_RDWR | O_CREAT, 0600));
    works(openat64_(directory, "a", O_RDWR));
    works(__openat_2_(directory, "a", O_RDWR));
    works(__openat64_2_(directory, "a", O_RDWR));
    char text[8];
    REFUSED(read(directory, text, sizeof text), EISDIR);
    REFUSED(write(directory, text, sizeof text), EBADF);
    EQUAL(fchdir(directory), 0);
    works(open("a", O_RDWR));
    EQUAL(chdir(".."), 0);
    EQUAL(symlink("d/a", "link"), 0);
    works(open("link", O_RDWR));
    works(open("t", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));

    REFUSED(open_("nowhere", O_RDWR), ENOENT);
    REFUSED(open_("a", O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST);
    REFUSED(openat_(-5, "a", O_RDWR), EBADF);
    REFUSED(creat_("d", 0600), EISDIR);
}

static int transfer_fd;
static unsigned char memory_out[256 * KIB], memory_in[256 * KIB];

static void prepare(size_t length)
{
    warm();
    transfer_fd = borrowed("f", O_CREAT | O_RDWR);
    fill(memory_out, 1, 0, sizeof memory_out);
    EQUAL(bare_pwrite(transfer_fd, memory_out, length, 0), length);
}

static void arrived(size_t length, uint64_t offset)
{
    CHECK(filled(memory_in, 1, offset, length));
    memset(memory_in, 0, sizeof memory_in);
}

static void read_forms(void)
{
    prepare(sizeof memory_out);
    int fd = transfer_fd;
    size_t n = 100 * KIB + 3;
    FORM(ssize_t, read, int, void *, size_t);
    FORM(ssize_t, __read, int, void *, size_t);
    FORM(ssize_t, __read_chk, int, void *, size_t, size_t);
    FORM(ssize_t, pread, int, void *, size_t, off_t);
    FORM(ssize_t, pread64, int, void *, size_t, off_t);
    FORM(ssize_t, __pread64, int, void *, size_t, off_t);
    FORM(ssize_t, __pread_chk, int, void *, size_t, off_t, size_t);
    FORM(ssize_t, __pread64_chk, int, void *, size_t, off_t, size_t);
    FORM(ssize_t, readv, int, const struct iovec *, int);
    FORM(ssize_t, preadv, int, const struct iovec *, int, off_t);
    FORM(ssize_t, preadv64, int, const struct iovec *, int, off_t);
    FORM(ssize_t, preadv2, int, const struct iovec *, int, off_t, int);
    FORM(ssize_t, preadv64v2, int, const struct iovec *, int, off_t, int);

#define AT_POSITION(call)                                                                            \
    do {                                                                                             \
        EQUAL(lseek(fd, 11, SEEK_SET), 11);                                                          \
        DIRECTLY(1, EQUAL(call, n));                                                                 \
        EQUAL(lseek(fd, 0, SEEK_CUR), 11 + n);                                                       \
        arrived(n, 11);                                                                              \
    } while (0)
#define AT_OFFSET(call)                                                                              \
    do {                                                                                             \
        EQUAL(lseek(fd, 5, SEEK_SET), 5);                                                            \
        DIRECTLY(1, EQUAL(call, n));                                                                 \
        EQUAL(lseek(fd, 0, SEEK_CUR), 5);                                                            \
        arrived(n, 12345);                                                                           \
    } while (0)
    AT_POSITION(read_(fd, memory_in, n));
    AT_POSITION(__read_(fd, memory_in, n));
    AT_POSITION(__read_chk_(fd, memory_in, n, sizeof memory_in));
    AT_OFFSET(pread_(fd, memory_in, n, 12345));
    AT_OFFSET(pread64_(fd, memory_in, n, 12345));
    AT_OFFSET(__pread64_(fd, memory_in, n, 12345));
    AT_OFFSET(__pread_chk_(fd, memory_in, n, 12345, n));
    AT_OFFSET(__pread64_chk_(fd, memory_in, n, 12345, n));
    struct iovec list[] = {{memory_in, 70000}, {NULL, 0}, {memory_in + 70000, 1}, {memory_in + 70001, n - 70001}};
    AT_POSITION(readv_(fd, list, 4));
    AT_OFFSET(preadv_(fd, list, 4, 12345));
    AT_OFFSET(preadv64_(fd, list, 4, 12345));
    /* Those with flags are right, whoever does them. */
    for (int i = 0; i < 2; i++) {
        ssize_t (*form)(int, const struct iovec *, int, off_t, int) = i ? preadv2_ : preadv64v2_;
        EQUAL(form(fd, list, 4, 12345, 0), n);
        arrived(n, 12345);
        EQUAL(lseek(fd, 11, SEEK_SET), 11);
        EQUAL(form(fd, list, 4, -1, 0), n);
        EQUAL(lseek(fd, 0, SEEK_CUR), 11 + n);
        arrived(n, 11);
        REFUSED(form(fd, list, 4, -2, 0), EINVAL);
        REFUSED(form(fd, list, 4, 0, 1 << 30), EOPNOTSUPP);
    }
    /* Lists that the kernel refuses, and long ones. */
    REFUSED(readv_(fd, list, -1), EINVAL);
    REFUSED(readv_(fd, list, 1025), EINVAL);
    static struct iovec many[1024];
    for (size_t i = 0; i < 1024; i++) many[i] = (struct iovec){memory_in + i * 100, 100};
    DIRECTLY(1, EQUAL(preadv_(fd, many, 1024, 7), 102400));
    arrived(102400, 7);
    EQUAL(readv_(fd, list, 0), 0);
    list[2].iov_len = (size_t)-1;
    REFUSED(readv_(fd, list, 4), EINVAL);
    REFUSED(preadv_(fd, many, 4, -1), EINVAL);
}

static void write_forms(void)
{
    prepare(1);
    int fd = transfer_fd;
    size_t n = 100 * KIB + 3;
    FORM(ssize_t, write, int, const void *, size_t);
    FORM(ssize_t, __write, int, const void *, size_t);
    FORM(ssize_t, pwrite, int, const void *, size_t, off_t);
    FORM(ssize_t, pwrite64, int, const void *, size_t, off_t);
    FORM(ssize_t, __pwrite64, int, const void *, size_t, off_t);
    FORM(ssize_t, writev, int, const struct iovec *, int);
    FORM(ssize_t, pwritev, int, const struct iovec *, int, off_t);
    FORM(ssize_t, pwritev64, int, const struct iovec *, int, off_t);
    FORM(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
    FORM(ssize_t, pwritev64v2, int, const struct iovec *, int, off_t, int);
#undef AT_POSITION
#undef AT_OFFSET
#define WROTE(at)                                                                                    \
    do {                                                                                             \
        struct stat status;                                                                          \
        EQUAL(fstat(fd, &status), 0);                                                                \
        EQUAL(status.st_size, at + n);                                                               \
        EQUAL(bare_pread(fd, memory_in, n, at), n);                                                  \
        CHECK(memcmp(memory_in, memory_out, n) == 0);                                                \
        memset(memory_in, 0, sizeof memory_in);                                                      \
        EQUAL(pread(fd, memory_in, n, at), n);                                                       \
        CHECK(memcmp(memory_in, memory_out, n) == 0);                                                \
        EQUAL(ftruncate(fd, 0), 0);                                                                  \
    } while (0)
#define AT_POSITION(call)                                                                            \
    do {                                                                                             \
        EQUAL(lseek(fd, 11, SEEK_SET), 11);                                                          \
        DIRECTLY(1, EQUAL(call, n));                                                                 \
        EQUAL(lseek(fd, 0, SEEK_CUR), 11 + n);                                                       \
        WROTE(11);                                                                                   \
    } while (0)
#define AT_OFFSET(call)                                                                              \
    do {                                                                                             \
        EQUAL(lseek(fd, 5, SEEK_SET), 5);                                                            \
        DIRECTLY(1, EQUAL(call, n));                                                                 \
        EQUAL(lseek(fd, 0, SEEK_CUR), 5);                                                            \
        WROTE(12345);                                                                                \
    } while (0)
    AT_POSITION(write_(fd, memory_out, n));
    AT_POSITION(__write_(fd, memory_out, n));
    AT_OFFSET(pwrite_(fd, memory_out, n, 12345));
    AT_OFFSET(pwrite64_(fd, memory_out, n, 12345));
    AT_OFFSET(__pwrite64_(fd, memory_out, n, 12345));
    struct iovec list[] = {{memory_out, 70000}, {NULL, 0}, {memory_out + 70000, 1}, {memory_out + 70001, n - 70001}};
    AT_POSITION(writev_(fd, list, 4));
    AT_OFFSET(pwritev_(fd, list, 4, 12345));
    AT_OFFSET(pwritev64_(fd, list, 4, 12345));
    for (int i = 0; i < 2; i++) {
        ssize_t (*form)(int, const struct iovec *, int, off_t, int) = i ? pwritev2_ : pwritev64v2_;
        EQUAL(form(fd, list, 4, 12345, 0), n);
        WROTE(12345);
        EQUAL(lseek(fd, 11, SEEK_SET), 11);
        EQUAL(form(fd, list, 4, -1, RWF_DSYNC), n);
        EQUAL(lseek(fd, 0, SEEK_CUR), 11 + n);
        WROTE(11);
        /* Appends what the library made longer behind the kernel's back. */
        EQUAL(pwrite(fd, memory_out, 100 * KIB, 0), 100 * KIB);
        EQUAL(form(fd, list, 1, 0, RWF_APPEND), 70000);
        EQUAL(bare_pread(fd, memory_in, 70000, 100 * KIB), 70000);
        CHECK(memcmp(memory_in, memory_out, 70000) == 0);
        EQUAL(ftruncate(fd, 0), 0);
    }
}

/* The program is ended by the C library, as without us. */
static void checked_buffers(void)
{
    prepare(100);
    FORM(ssize_t, __read_chk, int, void *, size_t, size_t);
    FORM(ssize_t, __pread_chk, int, void *, size_t, off_t, size_t);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(2);
            if (i) __read_chk_(transfer_fd, memory_in, 11, 10);
            else __pread_chk_(transfer_fd, memory_in, 11, 0, 10);
            _exit(0);
        }
        int status;
        EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

static void odd_lengths_and_offsets(void)
{
    prepare(sizeof memory_out);
    int fd = transfer_fd;
    EQUAL(read(fd, NULL, 0), 0);
    EQUAL(write(fd, NULL, 0), 0);
    EQUAL(pread(fd, memory_in, 0, 5), 0);
    EQUAL(lseek(fd, 0, SEEK_CUR), 0);
    REFUSED(pread(fd, memory_in, 1, -1), EINVAL);
    REFUSED(pwrite(fd, memory_in, 1, -1), EINVAL);
    REFUSED(pread(fd, memory_in, 1, INT64_MIN), EINVAL);
    /* As long as the type allows: the kernel moves at most 2 GiB less a page, here only to the end. */
    volatile size_t huge = SIZE_MAX;
    size_t longest = huge / 2;
    char *room = mmap(NULL, 3ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    ssize_t (*volatile form)(int, void *, size_t, off_t) = pread;
    EQUAL(form(fd, room, 3ul << 30, 0), sizeof memory_out);
    CHECK(filled(room, 1, 0, sizeof memory_out));
    errno = 0;
    ssize_t result = form(fd, room, longest, 0);
    CHECK(result == sizeof memory_out || (result == -1 && errno == EFAULT));
    EQUAL(form(fd, room, huge, 0), -1);
    /* The last offsets that there are. */
    off_t ends[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX - 4096, INT64_MAX - 2 * MIB, 1L << 62};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        errno = 0;
        ssize_t by_kernel = bare_pread(fd, memory_in, 8192, ends[i]);
        int error = errno;
        errno = 0;
        EQUAL(pread(fd, memory_in, 8192, ends[i]), by_kernel);
        EQUAL(errno, error);
        errno = 0;
        by_kernel = bare_pwrite(fd, memory_in, 8192, ends[i]);
        error = errno;
        errno = 0;
        EQUAL(pwrite(fd, memory_in, 8192, ends[i]), by_kernel);
        EQUAL(errno, error);
    }
    /* Memory that is not there. */
    CHECK(munmap(room + MIB, MIB) == 0);
    REFUSED(pwrite(fd, room + MIB, 100 * KIB, 0), EFAULT);
    REFUSED(pread(fd, room + MIB, 100 * KIB, 0), EFAULT);
    REFUSED(form(fd, NULL, 4096, 0), EFAULT);
    struct iovec bad[] = {{memory_in, 100}, {room + MIB, 100 * KIB}};
    REFUSED(pwritev(fd, bad + 1, 1, 0), EFAULT);
    REFUSED(preadv(fd, bad + 1, 1, 0), EFAULT);
    /* Nor is what was there a moment ago. */
    for (size_t length = 4 * KIB; length <= 400 * KIB; length *= 10) {
        memcpy(room + 2 * MIB, memory_out, sizeof memory_out);
        EQUAL(pwrite(fd, room + 2 * MIB, length, 0), length);
        CHECK(mprotect(room + 2 * MIB, MIB, PROT_NONE) == 0);
        REFUSED(pwrite(fd, room + 2 * MIB, length, 0), EFAULT);
        CHECK(mprotect(room + 2 * MIB, MIB, PROT_READ | PROT_WRITE) == 0);
        EQUAL(pread(fd, room + 2 * MIB, length, 0), length);
        CHECK(mprotect(room + 2 * MIB, MIB, PROT_NONE) == 0);
        REFUSED(pread(fd, room + 2 * MIB, length, 0), EFAULT);
        CHECK(mprotect(room + 2 * MIB, MIB, PROT_READ | PROT_WRITE) == 0);
        for (int way = 0; way < 4; way++) {
            enum { READ_WRITE = PROT_READ | PROT_WRITE, FRESH = MAP_PRIVATE | MAP_ANONYMOUS };
            int local = memfd_create("taken", 0);
            CHECK(local >= 0 && ftruncate(local, MIB) == 0);
            char *taken = mmap(NULL, MIB, READ_WRITE, way == 3 ? MAP_SHARED : FRESH, way == 3 ? local : -1, 0);
            CHECK(taken != MAP_FAILED);
            memcpy(taken, memory_out, sizeof memory_out);
            EQUAL(pread(fd, taken, length, 0), length);
            EQUAL(pwrite(fd, taken, length, 0), length);
            switch (way) {
            case 0:
                CHECK(munmap(taken, MIB) == 0);
                break;
            case 1:
                CHECK(mmap(taken, MIB, PROT_NONE, FRESH | MAP_FIXED, -1, 0) == taken);
                break;
            case 2:
                CHECK(mremap(taken, MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room + 4 * MIB) == room + 4 * MIB);
                break;
            default:
                CHECK(ftruncate(local, 0) == 0);
            }
            REFUSED(pwrite(fd, taken, length, 0), EFAULT);
            REFUSED(pread(fd, taken, length, 0), EFAULT);
            CHECK(close(local) == 0);
        }
    }
    holds(fd, 1, 0, sizeof memory_out);
}

static void modes(void)
{
    prepare(1000);
    int fd = borrowed("f", O_RDONLY);
    REFUSED(pwrite(fd, memory_out, 1, 0), EBADF);
    REFUSED(write(fd, memory_out, BORROWED), EBADF);
    DIRECTLY(1, EQUAL(read(fd, memory_in, 10), 10));
    EQUAL(close(fd), 0);
    REFUSED(pread(fd, memory_in, 1, 0), EBADF);
    REFUSED(close(fd), EBADF);
    fd = borrowed("f", O_WRONLY);
    REFUSED(pread(fd, memory_in, 1, 0), EBADF);
    REFUSED(read(fd, memory_in, BORROWED), EBADF);
    DIRECTLY(1, EQUAL(write(fd, memory_out, 10), 10));
    EQUAL(close(fd), 0);
    fd = open("f", O_PATH);
    for (int i = 0; i < 6; i++) {
        REFUSED(pread(fd, memory_in, BORROWED, 0), EBADF);
        REFUSED(pwrite(fd, memory_in, BORROWED, 0), EBADF);
    }
    EQUAL(close(fd), 0);
    REFUSED(read(-1, memory_in, 1), EBADF);
    REFUSED(read(1 << 20, memory_in, 1), EBADF);
    REFUSED(write(INT32_MIN, memory_in, 1), EBADF);
    REFUSED(close(-1), EBADF);
    /* The same number, opened otherwise, also where the library did not see the closing. */
    fd = borrowed("f", O_RDWR);
    DIRECTLY(1, EQUAL(pwrite(fd, memory_out, 10, 0), 10));
    EQUAL(syscall(SYS_close, fd), 0);
    EQUAL(syscall(SYS_openat, AT_FDCWD, "f", O_RDONLY), fd);
    REFUSED(pwrite(fd, memory_out, 10, 0), EBADF);
    EQUAL(pread(fd, memory_in, 10, 0), 10);
    EQUAL(close(fd), 0);
    fd = borrowed("f", O_RDWR);
    EQUAL(syscall(SYS_close, fd), 0);
    EQUAL(syscall(SYS_openat, AT_FDCWD, "f", O_RDWR | O_APPEND), fd);
    EQUAL(pwrite(fd, memory_out, 10, 0), 10);
    struct stat status;
    EQUAL(fstat(fd, &status), 0);
    EQUAL(status.st_size, 1010);
    EQUAL(close(fd), 0);
    /* Nor where another file of the pool was given the number. */
    fd = borrowed("f", O_RDWR);
    int other = borrowed("g", O_CREAT | O_RDWR);
    fill(memory_out, 2, 0, 1000);
    EQUAL(syscall(SYS_dup3, other, fd, 0), fd);
    EQUAL(pwrite(fd, memory_out, 1000, 0), 1000);
    holds(other, 2, 0, 1000);
    EQUAL(close(fd), 0);
    /* The signal that a program wants is its own. */
    fd = borrowed("f", O_RDWR);
    for (int signal = 0; signal <= SIGURG; signal += SIGURG) {
        EQUAL(fcntl(fd, F_GETSIG), signal);
        EQUAL(fcntl(fd, F_SETSIG, SIGURG), 0);
        DIRECTLY(1, EQUAL(pwrite(fd, memory_out, 10, 0), 10));
    }
    EQUAL(close(fd), 0);
    EQUAL(close(other), 0);
}

static void appending(void)
{
    prepare(1000);
    int plain = transfer_fd, end = borrowed("f", O_RDWR | O_APPEND);
    uint64_t size = 1000;
    fill(memory_out, 1, 1000, sizeof memory_out);
    for (int round = 0; round < 4; round++) {
        /* Behind what the library wrote beyond the end that the kernel knew. */
        DIRECTLY(1, EQUAL(pwrite(plain, memory_out + size - 1000, 5000, (off_t)size), 5000));
        size += 5000;
        EQUAL(lseek(end, 3, SEEK_SET), 3);
        for (int again = 0; again < 4; again++) {
            DIRECTLY(1, EQUAL(write(end, memory_out + size - 1000, 700), 700));
            size += 700;
        }
        DIRECTLY(1, EQUAL(pwrite(end, memory_out + size - 1000, 50, 7), 50));
        size += 50;
        /* By a stream, and by a call that nobody sees. */
        FILE *stream = fdopen(dup(end), "a");
        EQUAL(fwrite(memory_out + size - 1000, 1, 90, stream), 90);
        EQUAL(fclose(stream), 0);
        size += 90;
        EQUAL(unseen(SYS_write, end, (long)(memory_out + size - 1000), 60), 60);
        size += 60;
        struct iovec list[2] = {{memory_out + size - 1000, 40}, {memory_out + size - 1000 + 40, 30}};
        DIRECTLY(1, EQUAL(writev(end, list, 2), 70));
        size += 70;
        EQUAL(lseek(end, 0, SEEK_CUR), size);
        EQUAL(lseek(plain, 0, SEEK_END), size);
        holds(end, 1, 1000, size - 1000);
        DIRECTLY(1, EQUAL(pread(end, memory_in, 100, 0), 100));
    }
    /* Longer by the same opening without a write. */
    EQUAL(fallocate(end, 0, 0, (off_t)size + 10), 0);
    EQUAL(pwrite(plain, memory_out + size - 1000, 10, (off_t)size), 10);
    size += 10;
    for (int again = 0; again < 3; again++) {
        EQUAL(write(end, memory_out + size - 1000, 20), 20);
        size += 20;
    }
    /* Set and taken back later, through a duplicate too. */
    int other = dup(plain);
    EQUAL(fcntl(other, F_SETFL, O_APPEND), 0);
    EQUAL(lseek(plain, 0, SEEK_SET), 0);
    EQUAL(write(plain, memory_out + size - 1000, 300), 300);
    size += 300;
    EQUAL(lseek(plain, 0, SEEK_END), size);
    EQUAL(pwrite(plain, memory_out + size - 1000, 300, 0), 300);
    size += 300;
    EQUAL(lseek(other, 0, SEEK_END), size);
    EQUAL(fcntl(plain, F_SETFL, 0), 0);
    DIRECTLY(1, EQUAL(pwrite(other, memory_out + size - 1000, 300, (off_t)size), 300));
    size += 300;
    DIRECTLY(1, EQUAL(pwrite(other, memory_out, 1, 1000), 1));
    EQUAL(lseek(other, 0, SEEK_END), size);
    holds(plain, 1, 1000, size - 1000);
    /* And past the library. */
    EQUAL(syscall(SYS_fcntl, plain, F_SETFL, O_APPEND), 0);
    EQUAL(pwrite(plain, memory_out + size - 1000, 300, 0), 300);
    size += 300;
    EQUAL(lseek(plain, 0, SEEK_END), size);
    EQUAL(fcntl(plain, F_SETFL, 0), 0);
    /* With a child that has it, too. */
    pid_t child = fork();
    if (child == 0) {
        EQUAL(write(end, memory_out + size - 1000, 25), 25);
        _exit(0);
    }
    ends_well(child);
    size += 25;
    EQUAL(write(end, memory_out + size - 1000, 25), 25);
    size += 25;
    EQUAL(lseek(end, 0, SEEK_CUR), size);
    holds(end, 1, 1000, size - 1000);
    /* By the kernel, which has pages of it. */
    unsigned char *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, end, 0);
    CHECK(mapped != MAP_FAILED && mapped[size - 1] == byte_at(1, size - 1));
    DIRECTLY(0, EQUAL(write(end, memory_out + size - 1000, 200), 200));
    size += 200;
    EQUAL(munmap(mapped, size - 200), 0);
}

static void limited(void)
{
    prepare(1000);
    struct rlimit limit;
    EQUAL(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit.rlim_cur = 100 * KIB;
    EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
    /* Of what was borrowed before, and after. */
    int later = borrowed("f", O_RDWR);
    for (int i = 0; i < 2; i++) {
        int fd = i ? later : transfer_fd;
        EQUAL(ftruncate(fd, 0), 0);
        EQUAL(pwrite(fd, memory_out, 60 * KIB, 0), 60 * KIB);
        EQUAL(pwrite(fd, memory_out, 60 * KIB, 60 * KIB), 40 * KIB);
        REFUSED(pwrite(fd, memory_out, 1, 100 * KIB), EFBIG);
        EQUAL(lseek(fd, 0, SEEK_END), 100 * KIB);
    }
    signal(SIGXFSZ, SIG_DFL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pwrite(later, memory_out, 1, 100 * KIB) == 1 ? _exit(0) : _exit(1);
    }
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
}

static void sparse_and_far(void)
{
    prepare(1000);
    int fd = transfer_fd;
    uint64_t far[] = {(4ul << 30) - 50 * KIB, 5ul << 40, (1ul << 33) + 7};
    for (size_t i = 0; i < 3; i++) {
        fill(memory_out, 1, far[i], 100 * KIB);
        DIRECTLY(1, EQUAL(pwrite(fd, memory_out, 100 * KIB, (off_t)far[i]), 100 * KIB));
        holds(fd, 1, far[i], 100 * KIB);
        EQUAL(lseek(fd, (off_t)far[i], SEEK_SET), far[i]);
        DIRECTLY(1, EQUAL(read(fd, memory_in, 100 * KIB), 100 * KIB));
        CHECK(filled(memory_in, 1, far[i], 100 * KIB));
        EQUAL(lseek(fd, 0, SEEK_CUR), far[i] + 100 * KIB);
    }
    EQUAL(lseek(fd, 0, SEEK_END), (5ul << 40) + 100 * KIB);
    memset(memory_in, 1, sizeof memory_in);
    DIRECTLY(1, EQUAL(pread(fd, memory_in, sizeof memory_in, 1L << 31), sizeof memory_in));
    for (size_t i = 0; i < sizeof memory_in; i++) EQUAL(memory_in[i], 0);
    /* The end: short, then nothing; and after it moved, by others too. */
    off_t end = (5L << 40) + 100 * KIB;
    DIRECTLY(1, EQUAL(pread(fd, memory_in, 1000, end - 10), 10));
    DIRECTLY(1, EQUAL(pread(fd, memory_in, 1000, end), 0));
    DIRECTLY(1, EQUAL(pread(fd, memory_in, 1000, end + 4096), 0));
    EQUAL(lseek(fd, end - 1, SEEK_SET), end - 1);
    EQUAL(read(fd, memory_in, 100), 1);
    EQUAL(read(fd, memory_in, 100), 0);
    EQUAL(lseek(fd, 0, SEEK_CUR), end);
    EQUAL(truncate("f", 500), 0);
    EQUAL(pread(fd, memory_in, 1000, 0), 500);
    EQUAL(read(fd, memory_in, 100), 0);
    holds(fd, 1, 0, 1);
    EQUAL(ftruncate(fd, 2000), 0);
    EQUAL(pread(fd, memory_in, 1000, 499), 1000);
    CHECK(memory_in[0] == byte_at(1, 499) || memory_in[0] != 0);
    for (int i = 1; i < 1000; i++) EQUAL(memory_in[i], 0);
    /* Open by no name any more. */
    EQUAL(unlink("f"), 0);
    fill(memory_out, 1, 0, 100 * KIB);
    DIRECTLY(1, EQUAL(pwrite(fd, memory_out, 100 * KIB, 0), 100 * KIB));
    holds(fd, 1, 0, 100 * KIB);
}

static uint64_t seed = 88172645463325252u;

static size_t below(size_t limit)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (size_t)(seed >> 20) % limit;
}

/* The same calls on a file of the pool and on one elsewhere give the same, in every order. */
static void at_random(void)
{
    if (!getenv("WEIR_IO_BUFFER")) warm();
    enum { FDS = 4, CALLS = 4000, SPACE = 300 * KIB, LONGEST = 80 * KIB };
    const char *paths[2] = {"random", strdup(outside("random"))};
    int buffered = getenv("WEIR_IO_BUFFER") != NULL;
    int fds[2][FDS];
    unlink(paths[1]);
    unsigned char *memory[2] = {allocate(LONGEST), allocate(LONGEST)};
    for (int i = 0; i < FDS; i++)
        for (int side = 0; side < 2; side++) fds[side][i] = -1;
    static const int flags[] = {O_RDWR, O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND, O_RDWR | O_TRUNC};
    for (int call = 0; call < CALLS; call++) {
        size_t slot = below(FDS), kind = below(26), length = below(below(2) ? LONGEST : 600), offset = below(SPACE);
        size_t flag = below(6), other = below(FDS), cut = below(length + 1), fresh = below(12);
        long long results[2];
        int errors[2];
        off_t positions[2];
        for (int side = 0; side < 2; side++) {
            int *fd = &fds[side][slot];
            unsigned char *at = memory[side];
            struct iovec list[2] = {{at, cut}, {at + cut, length - cut}};
            long long result = 0;
            struct stat status;
            if (*fd < 0) *fd = open(paths[side], O_CREAT | O_RDWR, 0600);
            CHECK(*fd >= 0);
            fill(at, (unsigned)call, 0, LONGEST);
            errno = 0;
            switch (kind) {
            case 0: case 1: case 2: result = pread(*fd, at, length, (off_t)offset); break;
            case 3: case 4: case 5: result = pwrite(*fd, at, length, (off_t)offset); break;
            case 6: case 7: case 8: result = read(*fd, at, length); break;
            case 9: case 10: case 11: result = write(*fd, at, length); break;
            case 12: result = readv(*fd, list, 2); break;
            case 13: result = writev(*fd, list, 2); break;
            case 14: result = preadv(*fd, list, 2, (off_t)offset); break;
            case 15: result = pwritev(*fd, list, 2, (off_t)offset); break;
            case 16: result = bare_pread(*fd, at, length, (off_t)offset); break;
            case 17: result = bare_pwrite(*fd, at, length, (off_t)offset); break;
            case 18: result = syscall(SYS_read, *fd, at, length); break;
            case 19:
                /* Nobody tells the kernel of the new end before a bare call that appends. */
                CHECK(fstat(*fd, &status) == 0);
                result = syscall(SYS_write, *fd, at, length);
                break;
            case 20: result = lseek(*fd, (off_t)offset, SEEK_SET); break;
            case 21: result = lseek(*fd, -(off_t)(offset / 4), SEEK_END); break;
            case 22: result = fresh ? 0 : ftruncate(*fd, (off_t)offset); break;
            case 23:
                /* Open for the same as `dup` would give, otherwise than before. */
                if (fresh < 6) {
                    close(*fd);
                    *fd = open(paths[side], flags[flag] & (call % 5 ? ~O_TRUNC : ~0));
                }
                break;
            case 24:
                if (fds[side][other] >= 0 && other != slot) {
                    if (fresh < 6) {
                        CHECK(dup2(fds[side][other], *fd) == *fd);
                    } else {
                        close(*fd);
                        *fd = dup(fds[side][other]);
                    }
                }
                break;
            default: result = fcntl(*fd, F_SETFL, flag % 2 ? O_APPEND : 0); break;
            }
            errors[side] = errno;
            results[side] = result;
            positions[side] = lseek(*fd, 0, SEEK_CUR);
        }
        int same = results[0] == results[1] && positions[0] == positions[1] &&
                   (results[0] >= 0 || errors[0] == errors[1]) &&
                   /* Behind what was read the memory is as it was: some programs count on it. */
                   (results[0] < 0 || memcmp(memory[0], memory[1], length) == 0);
        if (!same) {
            char text[200];
            snprintf(text, sizeof text, ": call %d, kind %zu, length %zu, offset %zu: %lld (errno %d, at %lld), not %lld (errno %d, at %lld)",
                     call, kind, length, offset, results[0], errors[0], (long long)positions[0], results[1], errors[1], (long long)positions[1]);
            failed(__FILE__, __LINE__, "pool and other file are alike", text);
        }
    }
    CHECK(direct() > (buffered ? CALLS / 10 : CALLS / 4));
}

enum { ROWS_SPACE = 2 * MIB, ROWS_LONGEST = 200 * KIB };
static unsigned char rows_model[ROWS_SPACE], rows_memory[ROWS_LONGEST];
static size_t rows_size;

static void row_reads(int fd, size_t offset, size_t length, size_t form)
{
    size_t left = offset < rows_size ? rows_size - offset : 0, third = length / 3;
    struct iovec list[2] = {{rows_memory, third}, {rows_memory + third, length - third}};
    ssize_t got = form == 0   ? pread(fd, rows_memory, length, (off_t)offset)
                  : form == 1 ? preadv(fd, list, 2, (off_t)offset)
                              : (lseek(fd, (off_t)offset, SEEK_SET), read(fd, rows_memory, length));
    EQUAL(got, (ssize_t)(left < length ? left : length));
    CHECK(memcmp(rows_memory, rows_model + offset, (size_t)got) == 0);
}

static void row_writes(int fd, size_t offset, size_t length, size_t form)
{
    if (offset + length > ROWS_SPACE) return;
    fill(rows_memory, (unsigned)below(1000), offset, length);
    memcpy(rows_model + offset, rows_memory, length);
    if (offset + length > rows_size) rows_size = offset + length;
    size_t half = length / 2;
    struct iovec list[2] = {{rows_memory, half}, {rows_memory + half, length - half}};
    ssize_t put = form == 0   ? pwrite(fd, rows_memory, length, (off_t)offset)
                  : form == 1 ? pwritev(fd, list, 2, (off_t)offset)
                              : (lseek(fd, (off_t)offset, SEEK_SET), write(fd, rows_memory, length));
    EQUAL(put, (ssize_t)length);
}

/* Rows of sequential requests through several descriptors, and now and then another one in the middle: each byte is
   as it was last written, and the file as long. */
static void rows(void)
{
    if (!getenv("WEIR_IO_BUFFER")) warm();
    enum { FDS = 3, ROWS = 2500 };
    int fds[FDS];
    for (int i = 0; i < FDS; i++) CHECK((fds[i] = open("rows", O_CREAT | O_RDWR, 0600)) >= 0);
    for (int row = 0; row < ROWS; row++) {
        size_t kind = below(12), form = below(3), longest = below(4) ? 5000 : below(8) ? 40 * KIB : ROWS_LONGEST;
        size_t length = 1 + below(longest), count = 1 + below(below(10) ? 40 : 200);
        size_t offset = below(20) ? below(rows_size + 1) : below(ROWS_SPACE), slot = below(FDS);
        for (; kind < 9 && count > 0 && offset < ROWS_SPACE; count--, offset += length) {
            if (kind < 5) {
                row_reads(fds[slot], offset, length, form);
                if (below(60) == 0) row_writes(fds[below(FDS)], offset + below(40 * KIB), 1 + below(9000), below(3));
                if (offset > rows_size + 2 * length) break;
            } else {
                row_writes(fds[slot], offset, length, form);
                if (below(60) == 0) row_reads(fds[below(FDS)], below(offset + 1), 1 + below(9000), below(3));
            }
        }
        if (kind == 9) {
            size_t size = below(4) ? below(rows_size + 1) : below(ROWS_SPACE), from = size < rows_size ? size : rows_size;
            EQUAL(ftruncate(fds[slot], (off_t)size), 0);
            memset(rows_model + from, 0, ROWS_SPACE - from);
            rows_size = size;
        } else if (kind == 10) {
            EQUAL(fsync(fds[slot]), 0);
        } else if (kind == 11) {
            EQUAL(close(fds[slot]), 0);
            CHECK((fds[slot] = open("rows", O_RDWR)) >= 0);
            EQUAL(lseek(fds[slot], 0, SEEK_END), (off_t)rows_size);
        }
        /* What buffers have read is not believed for so long. */
        if (below(300) == 0) usleep(120 * 1000);
    }
}

/* Where nobody else changes anything the kernel believes sizes for a moment; what the library writes past it
   is seen all the same. */
static void believed_sizes(void)
{
    warm();
    char *memory = allocate(MIB);
    struct stat found;
    for (off_t round = 0; round < 20; round++) {
        char name[32];
        snprintf(name, sizeof name, "sized%d", (int)round % 3);
        int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
        CHECK(fd >= 0);
        EQUAL(close(fd), 0);
        for (int i = 0; i < 100; i++) {
            EQUAL(stat(name, &found), 0);
            EQUAL(found.st_size, 0);
        }
        fd = open(name, O_WRONLY);
        CHECK(fd >= 0);
        for (off_t size = MIB; size < 5 * MIB; size += MIB) {
            EQUAL(pwrite(fd, memory, MIB, size - MIB), MIB);
            EQUAL(stat(name, &found), 0);
            EQUAL(found.st_size, size);
            EQUAL(fstat(fd, &found), 0);
            EQUAL(found.st_size, size);
            EQUAL(lseek(fd, 0, SEEK_END), size);
        }
        DIRECTLY(1, EQUAL(pwrite(fd, memory, 100, 0), 100));
        EQUAL(close(fd), 0);
        for (int i = 0; i < 100; i++) {
            EQUAL(stat(name, &found), 0);
            EQUAL(found.st_size, 4 * MIB);
        }
    }
    free(memory);
}

static const struct test tests[] = {
    {"believed_sizes", believed_sizes},
    {"opens", opens},
    {"read_forms", read_forms},
    {"write_forms", write_forms},
    {"checked_buffers", checked_buffers},
    {"odd_lengths_and_offsets", odd_lengths_and_offsets},
    {"modes", modes},
    {"appending", appending},
    {"limited", limited},
    {"sparse_and_far", sparse_and_far},
    {"at_random", at_random},
    {"rows", rows},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
