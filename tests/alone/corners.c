/* What C programs do with files of a pool that has no mount. Each case that
   is wrong says so; the exit status is their number. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;
static void *volatile nowhere = (void *)8;
static const char *mount;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(what)) {                                                                             \
            wrong++;                                                                               \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                   \
        }                                                                                          \
    } while (0)
#define REFUSED(number, what) CHECK((what) && errno == (number))

static const char *at(const char *name)
{
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", mount, name);
    return path;
}

static int holds(const char *path, const char *expected)
{
    char found[4096];
    int fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, found, sizeof found);
    if (fd >= 0)
        close(fd);
    int same = length == (ssize_t)strlen(expected) && memcmp(found, expected, length) == 0;
    if (!same)
        fprintf(stderr, "%s: %.*s, not %s\n", path, length < 0 ? 0 : (int)length, found, expected);
    return same;
}

static void descriptors(void)
{
    char memory[64];
    struct stat stat_found;
    struct statx statx_found;
    int lowest = dup(0);
    close(lowest);
    int fd = open(at("a"), O_RDWR | O_CREAT | O_EXCL, 0666);
    CHECK(fd == lowest);
    CHECK(fcntl(fd, F_GETFD) == 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    CHECK(write(fd, "0123456789", 10) == 10 && lseek(fd, 0, SEEK_CUR) == 10);
    CHECK(pread(fd, memory, 4, 3) == 4 && memcmp(memory, "3456", 4) == 0);
    CHECK(lseek(fd, 8, SEEK_SET) == 8 && read(fd, memory, 64) == 2 && read(fd, memory, 64) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 10);
    struct iovec list[2] = {{"ab", 2}, {"cd", 2}};
    CHECK(writev(fd, list, 2) == 4 && pwritev(fd, list, 2, 1) == 4);
    CHECK(fstat(fd, &stat_found) == 0 && stat_found.st_size == 14 && S_ISREG(stat_found.st_mode));
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &statx_found) == 0 && statx_found.stx_size == 14);
    struct stat by_path;
    CHECK(stat(at("a"), &by_path) == 0 && by_path.st_ino == stat_found.st_ino &&
          by_path.st_dev == stat_found.st_dev);
    CHECK(ftruncate(fd, 5) == 0 && holds(at("a"), "0abcd"));
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    CHECK(fchmod(fd, 0400) == 0 && stat(at("a"), &by_path) == 0 && (by_path.st_mode & 0777) == 0400);
    CHECK(fchmod(fd, 0600) == 0);
    int other = dup(fd);
    CHECK(lseek(other, 1, SEEK_SET) == 1 && read(fd, memory, 2) == 2 && memory[0] == 'a');
    CHECK(close(fd) == 0 && read(other, memory, 2) == 2 && memory[0] == 'c' && close(other) == 0);
    REFUSED(EBADF, read(other, memory, 1) == -1);
    REFUSED(EEXIST, open(at("a"), O_RDWR | O_CREAT | O_EXCL, 0666) == -1);
    REFUSED(ENOENT, open(at("none"), O_RDONLY) == -1);
    REFUSED(EISDIR, open(at(""), O_WRONLY) == -1);
    REFUSED(ENOTDIR, open(at("a"), O_RDONLY | O_DIRECTORY) == -1);
    fd = open(at("a"), O_WRONLY);
    REFUSED(EBADF, read(fd, memory, 1) == -1);
    REFUSED(EFAULT, write(fd, nowhere, 100) == -1);
    REFUSED(EFAULT, open(nowhere, O_RDONLY) == -1);
    REFUSED(EFAULT, symlink(nowhere, at("none")) == -1);
    CHECK(lchmod(at("a"), 0640) == 0 && stat(at("a"), &by_path) == 0 && (by_path.st_mode & 0777) == 0640);
    CHECK(symlink("a", at("link")) == 0 && close(open(at("link"), O_RDONLY)) == 0);
    REFUSED(ELOOP, open(at("link"), O_RDONLY | O_NOFOLLOW) == -1);
    REFUSED(ELOOP, open(at("link"), O_RDONLY | O_CREAT | O_NOFOLLOW, 0600) == -1);
    REFUSED(EOPNOTSUPP, lchmod(at("link"), 0600) == -1);
    REFUSED(EOPNOTSUPP, fchmodat(AT_FDCWD, at("link"), 0600, AT_SYMLINK_NOFOLLOW) == -1);
    CHECK(unlink(at("link")) == 0);
    REFUSED(EISDIR, open(at(""), O_RDONLY | O_TRUNC) == -1);
    struct statvfs figures;
    CHECK(statvfs(at("a"), &figures) == 0 && figures.f_namemax == 255 && figures.f_bavail > 0);
    CHECK(figures.f_blocks * figures.f_frsize < 1ul << 30 && pathconf(at("a"), _PC_NAME_MAX) == 255);
    REFUSED(EINVAL, pwrite(fd, "x", 1, -1) == -1);
    CHECK(close(fd) == 0);
    fd = open(at("a"), O_WRONLY | O_APPEND);
    CHECK(write(fd, "++", 2) == 2 && lseek(fd, 0, SEEK_CUR) == 7 && close(fd) == 0);
    CHECK(holds(at("a"), "0abcd++"));
    fd = open(at("a"), O_WRONLY | O_TRUNC);
    CHECK(lseek(fd, 0, SEEK_END) == 0 && close(fd) == 0 && holds(at("a"), ""));
    fd = creat(at("created"), 0600);
    CHECK(fd >= 0 && unlink(at("created")) == 0 && write(fd, "x", 1) == 1);
    CHECK(fstat(fd, &stat_found) == 0 && stat_found.st_nlink == 0 && stat_found.st_size == 1);
    CHECK(close(fd) == 0 && access(at("created"), F_OK) == -1);
    int directory = open(mount, O_RDONLY | O_DIRECTORY);
    fd = openat(directory, "below", O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "y", 1) == 1 && close(fd) == 0 && holds(at("below"), "y"));
    CHECK(fstatat(directory, "below", &stat_found, 0) == 0 && stat_found.st_size == 1);
    CHECK(unlinkat(directory, "below", 0) == 0 && faccessat(directory, "below", F_OK, 0) == -1);
    CHECK(close(directory) == 0);
    /* Descriptors that were closed and opened by others are theirs. */
    fd = open(at("a"), O_RDWR);
    int null = open("/dev/null", O_WRONLY);
    CHECK(dup2(null, fd) == fd && write(fd, "lost", 4) == 4 && close(null) == 0 && close(fd) == 0);
    CHECK(holds(at("a"), ""));
}

static void streams(void)
{
    char line[64];
    FILE *file = fopen(at("s"), "w");
    CHECK(file != NULL && fileno(file) >= 0);
    for (int number = 0; number < 5000; number++)
        CHECK(fprintf(file, "%d\n", number) > 0);
    CHECK(ftell(file) == 23890 && fseek(file, 0, SEEK_SET) == 0 && fputs("zero", file) >= 0);
    CHECK(fclose(file) == 0);
    file = fopen(at("s"), "r");
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "zero\n") != 0);
    CHECK(fseek(file, -5, SEEK_END) == 0 && fgets(line, sizeof line, file) && strcmp(line, "4999\n") == 0);
    CHECK(fgetc(file) == EOF && feof(file) && !ferror(file) && fclose(file) == 0);
    file = fopen(at("s"), "a+");
    CHECK(fputs("end\n", file) >= 0 && fseek(file, -4, SEEK_END) == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "end\n") == 0 && fclose(file) == 0);
    int fd = open(at("s"), O_RDWR | O_TRUNC);
    file = fdopen(fd, "w");
    CHECK(fputs("by descriptor", file) >= 0 && fileno(file) == fd && fclose(file) == 0);
    CHECK(holds(at("s"), "by descriptor"));
    REFUSED(EBADF, fcntl(fd, F_GETFD) == -1);
    REFUSED(ENOENT, fopen(at("none"), "r") == NULL);
    REFUSED(ENOSYS, freopen(at("s"), "w", stdin) == NULL);
}

static void *writes(void *argument)
{
    int fd = *(int *)argument;
    for (int turn = 0; turn < 100; turn++)
        if (write(fd, "01234567", 8) != 8)
            return argument;
    return NULL;
}

static void together(void)
{
    pthread_t threads[4];
    struct stat found;
    int fd = open(at("threads"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int index = 0; index < 4; index++)
        pthread_create(&threads[index], NULL, writes, &fd);
    for (int index = 0; index < 4; index++) {
        void *result;
        pthread_join(threads[index], &result);
        CHECK(result == NULL);
    }
    CHECK(fstat(fd, &found) == 0 && found.st_size == 4 * 100 * 8);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    pid_t child = fork();
    if (child == 0) {
        char memory[8];
        _exit(read(fd, memory, 8) == 8 && memcmp(memory, "01234567", 8) == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == 8 && close(fd) == 0);
}

/* Where there is no mount, the child of vfork has memory of its own. */
static void guests(void)
{
    pid_t child = vfork();
    if (child == 0) {
        int fd = open(at("guest"), O_CREAT | O_WRONLY, 0600);
        _exit(fd >= 0 && write(fd, "guest", 5) == 5 && close(fd) == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(holds(at("guest"), "guest") && unlink(at("guest")) == 0);
    /* What has lost its name is the child's too, while the parent has it open. */
    int fd = open(at("nameless"), O_CREAT | O_RDWR, 0600);
    CHECK(write(fd, "still", 5) == 5 && unlink(at("nameless")) == 0);
    child = fork();
    if (child == 0) {
        char memory[8];
        _exit(pread(fd, memory, 8, 0) == 5 && memcmp(memory, "still", 5) == 0 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && close(fd) == 0);
}

/* The working directory, and names that nobody has. */
static void places(void)
{
    char found[4096], expected[4096];
    CHECK(getcwd(found, sizeof found) != NULL && strncmp(found, mount, strlen(mount)) != 0);
    int before = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(mkdir(at("w"), 0700) == 0 && chdir(at("w")) == 0 && mkdir("below", 0700) == 0);
    CHECK(chdir("below") == 0);
    snprintf(expected, sizeof expected, "%s/w/below", mount);
    CHECK(getcwd(found, sizeof found) == found && strcmp(found, expected) == 0);
    REFUSED(ERANGE, getcwd(found, 3) == NULL);
    char *own = getcwd(NULL, 0);
    CHECK(own != NULL && strcmp(own, expected) == 0);
    free(own);
    int fd = open("../relative", O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "r", 1) == 1 && close(fd) == 0 && holds(at("w/relative"), "r"));
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "test \"$(/bin/pwd)\" = \"$0\" && cat ../relative >copy", expected, (char *)NULL);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && holds("copy", "r"));
    REFUSED(ENOENT, chdir("none") == -1);
    REFUSED(ENOTDIR, chdir("copy") == -1);
    CHECK(fchdir(before) == 0 && close(before) == 0 && unlink(at("w/below/copy")) == 0);
    CHECK(getcwd(found, sizeof found) != NULL && strncmp(found, mount, strlen(mount)) != 0);

    snprintf(found, sizeof found, "%s/w/XXXXXX", mount);
    fd = mkstemp(found);
    CHECK(fd >= 0 && strchr(found, 'X') != found + strlen(found) - 6 && write(fd, "t", 1) == 1);
    CHECK(close(fd) == 0 && holds(found, "t") && unlink(found) == 0);
    snprintf(found, sizeof found, "%s/w/XXXXXX.c", mount);
    fd = mkstemps(found, 2);
    CHECK(fd >= 0 && strcmp(found + strlen(found) - 2, ".c") == 0 && close(fd) == 0);
    CHECK(unlink(found) == 0);
    snprintf(found, sizeof found, "%s/w/XXXXXX", mount);
    CHECK(mkdtemp(found) == found && rmdir(found) == 0);
    snprintf(found, sizeof found, "%s/w/none", mount);
    REFUSED(EINVAL, mkstemp(found) == -1);
    CHECK(unlink(at("w/relative")) == 0 && rmdir(at("w/below")) == 0 && rmdir(at("w")) == 0);
}

static void interrupted(int signal)
{
    struct stat found;
    (void)signal;
    (void)stat(at("threads"), &found);
    int fd = open(at("threads"), O_RDONLY);
    if (fd >= 0)
        close(fd);
}

static void handlers(void)
{
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    pid_t parent = getpid();
    pid_t child = fork();
    if (child == 0) {
        for (int turn = 0; turn < 300; turn++) {
            usleep(500);
            kill(parent, SIGALRM);
        }
        _exit(0);
    }
    struct stat found;
    int good = 0;
    while (waitpid(child, NULL, WNOHANG) == 0)
        good += stat(at("threads"), &found) == 0 && found.st_size == 3200;
    CHECK(good > 0);
    signal(SIGALRM, SIG_DFL);
}

static void *waits(void *argument)
{
    (void)getchar();
    return argument;
}

/* At its end a process writes what its streams hold, and waits for no other thread. */
static void endings(void)
{
    int both[2], status;
    CHECK(pipe(both) == 0);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        alarm(20);
        FILE *file = fopen(at("ending"), "w");
        if (!file || dup2(both[0], 0) != 0 || pthread_create(&thread, NULL, waits, NULL) != 0)
            _exit(1);
        fputs("buffered", file);
        usleep(50000);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(holds(at("ending"), "buffered") && unlink(at("ending")) == 0);
    CHECK(close(both[0]) == 0 && close(both[1]) == 0);
}

static int is_named_e(const struct dirent *entry)
{
    return strcmp(entry->d_name, "e") == 0;
}

static void directories(void)
{
    CHECK(mkdir(at("d"), 0700) == 0 && mkdir(at("d/e"), 0700) == 0);
    REFUSED(EEXIST, mkdir(at("d"), 0700) == -1);
    DIR *directory = opendir(at("d"));
    CHECK(directory != NULL && dirfd(directory) >= 0);
    int found = 0, seen = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL; found++)
        seen += strcmp(entry->d_name, "e") == 0 && entry->d_type == DT_DIR;
    CHECK(found == 3 && seen == 1);
    CHECK(rename(at("a"), at("d/a")) == 0);
    rewinddir(directory);
    for (found = 0; readdir(directory) != NULL; found++)
        ;
    CHECK(found == 4 && closedir(directory) == 0);
    REFUSED(ENOTEMPTY, rmdir(at("d")) == -1);
    REFUSED(EXDEV, rename(at("d/a"), "/tmp/weir-never") == -1);
    CHECK(remove(at("d/a")) == 0 && remove(at("d/e")) == 0 && rmdir(at("d")) == 0);
    struct dirent **list;
    CHECK(mkdir(at("d"), 0700) == 0 && mkdir(at("d/e"), 0700) == 0 && mkdir(at("d/a"), 0700) == 0);
    CHECK(scandir(at("d"), &list, NULL, alphasort) == 4 && strcmp(list[0]->d_name, ".") == 0 &&
          strcmp(list[2]->d_name, "a") == 0 && strcmp(list[3]->d_name, "e") == 0 && list[3]->d_type == DT_DIR);
    for (int i = 0; i < 4; i++)
        free(list[i]);
    free(list);
    CHECK(scandir(at("d"), &list, is_named_e, NULL) == 1 && strcmp(list[0]->d_name, "e") == 0);
    free(list[0]);
    free(list);
    CHECK(rmdir(at("d/e")) == 0 && rmdir(at("d/a")) == 0 && rmdir(at("d")) == 0);
    REFUSED(ENOENT, scandir(at("d"), &list, NULL, NULL) == -1);
    REFUSED(ENOTDIR, scandir(at("s"), &list, NULL, NULL) == -1);
    CHECK(scandir("/", &list, NULL, alphasort) > 2);
    REFUSED(ENOENT, opendir(at("d")) == NULL);
    REFUSED(ENOTDIR, opendir(at("s")) == NULL);
    /* No set-group-id by mkdir. */
    struct stat made;
    CHECK(mkdir(at("d"), 07700) == 0 && stat(at("d"), &made) == 0 && (made.st_mode & 07777) == 01700);
    /* What is no file, and what is opened for its path alone, says so each time. */
    char memory[8];
    int fd = open(at("d"), O_RDONLY), path = open(at("s"), O_PATH), both = open(at("d"), O_PATH);
    for (int round = 0; round < 2; round++) {
        REFUSED(EISDIR, read(fd, memory, 8) == -1);
        REFUSED(EBADF, write(fd, memory, 8) == -1);
        REFUSED(EBADF, pwrite(fd, memory, 0, 0) == -1);
        REFUSED(EBADF, read(path, memory, 8) == -1);
        REFUSED(EBADF, write(path, memory, 8) == -1);
        REFUSED(EBADF, lseek(path, 0, SEEK_END) == -1);
        REFUSED(EBADF, read(both, memory, 8) == -1);
    }
    REFUSED(EINVAL, ftruncate(fd, 0) == -1);
    REFUSED(EBADF, ftruncate(path, 0) == -1);
    REFUSED(EBADF, ftruncate(both, 0) == -1);
    REFUSED(EBADF, fchmod(path, 0700) == -1);
    REFUSED(EBADF, fchown(path, 0, 0) == -1);
    REFUSED(EBADF, fdopendir(both) == NULL);
    REFUSED(ENOTDIR, fdopendir(path) == NULL);
    REFUSED(ENOTDIR, openat(path, "x", O_RDONLY) == -1);
    CHECK(fstat(path, &made) == 0 && S_ISREG(made.st_mode) && (made = (struct stat){0}, fstat(both, &made) == 0));
    CHECK(mkdirat(both, "e", 0700) == 0 && unlinkat(fd, "e", AT_REMOVEDIR) == 0);
    CHECK(close(fd) == 0 && close(path) == 0 && close(both) == 0 && rmdir(at("d")) == 0);
    /* The C library's own are not disturbed. */
    directory = opendir("/");
    CHECK(directory != NULL && readdir(directory) != NULL && closedir(directory) == 0);
}

static void mappings(void)
{
    int fd = open(at("s"), O_RDWR);
    char *memory = mmap(NULL, 13, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(memory != MAP_FAILED && memcmp(memory, "by descriptor", 13) == 0 && memory[13] == 0);
    CHECK(munmap(memory, 13) == 0);
    memory = mmap(NULL, 13, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(memory != MAP_FAILED && (memory[0] = 'B') && holds(at("s"), "by descriptor"));
    CHECK(munmap(memory, 13) == 0);
    REFUSED(EOPNOTSUPP, mmap(NULL, 13, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK(close(fd) == 0);
}

static void refusals(void)
{
    int fd = open(at("s"), O_RDWR);
    int null = open("/dev/null", O_RDWR);
    REFUSED(ENOSYS, mkfifo(at("fifo"), 0600) == -1);
    REFUSED(ENOLCK, lockf(fd, F_LOCK, 1) == -1);
    REFUSED(EOPNOTSUPP, fallocate(fd, 0, 0, 100) == -1);
    REFUSED(EINVAL, sendfile(null, fd, NULL, 10) == -1);
    REFUSED(EINVAL, copy_file_range(null, NULL, fd, NULL, 10, 0) == -1);
    REFUSED(EXDEV, link(at("s"), "/tmp/weir-never") == -1);
    /* By number: programs then call the older function. */
    struct statx found;
    unsigned long how[3] = {O_RDONLY, 0, 0};
    REFUSED(ENOSYS, syscall(SYS_openat2, AT_FDCWD, at("s"), how, sizeof how) == -1);
    REFUSED(ENOSYS, syscall(SYS_statx, AT_FDCWD, at("s"), 0, STATX_SIZE, &found) == -1);
    REFUSED(ENOSYS, syscall(SYS_copy_file_range, fd, NULL, null, NULL, 10, 0) == -1);
    REFUSED(ENOSYS, syscall(SYS_copy_file_range, null, NULL, fd, NULL, 10, 0) == -1);
    CHECK(close(syscall(SYS_openat2, AT_FDCWD, "/dev/null", how, sizeof how)) == 0);
    CHECK(syscall(SYS_statx, AT_FDCWD, "/dev/null", 0, STATX_SIZE, &found) == 0);
    /* Whatever comes past the library finds nothing, and changes nothing. */
    char memory[8];
    long moved = -1;
    __asm__ volatile("" ::: "memory");
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(moved) : "a"(1L), "D"((long)fd), "S"("x"), "d"(1L) : "rcx", "r11", "memory");
    CHECK(moved == -EPERM);
    __asm__ volatile("syscall" : "=a"(moved) : "a"(0L), "D"((long)fd), "S"(memory), "d"(8L) : "rcx", "r11", "memory");
    CHECK(moved == -EBADF);
#endif
    CHECK(close(fd) == 0 && close(null) == 0 && holds(at("s"), "by descriptor"));
}

int main(int count, char **arguments)
{
    mount = getenv("WEIR_MOUNT");
    if (count == 2 && strcmp(arguments[1], "inherited") == 0) {
        /* Of a shell: standard output is the pool's. */
        printf("%s of %d\n", "printed", count);
        return fflush(stdout) != 0;
    }
    descriptors();
    streams();
    together();
    guests();
    places();
    handlers();
    endings();
    directories();
    mappings();
    refusals();
    return wrong;
}
