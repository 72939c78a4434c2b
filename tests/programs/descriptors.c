// Writes to one file by one description from children of all kinds, from copies of the descriptor and
// from threads, and reads it back. Says what went wrong; leaves the file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define NEED(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "descriptors.c:%d: not so: %s (errno %s)\n", __LINE__, #condition,       \
                    strerror(errno));                                                                \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

static void put(int fd, const char *text) {
    errno = 0;
    NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    NEED(errno == 0);
}

static void ended_well(pid_t pid) {
    int status;
    NEED(waitpid(pid, &status, 0) == pid);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Memory that is not there.
static char *volatile nowhere = (char *)8;

static off_t at(int fd) { return lseek(fd, 0, SEEK_CUR); }

enum { THREADS = 4, RECORDS = 50, RECORD = 777 };
static int threads_fd;

static void *thread(void *argument) {
    int rank = (int)(intptr_t)argument;
    for (int index = 0; index < RECORDS; index++) {
        char record[RECORD];
        memset(record, 'a' + rank, sizeof record);
        off_t place = ((off_t)index * THREADS + rank) * RECORD;
        NEED(pwrite(threads_fd, record, RECORD, place) == RECORD);
        char back[RECORD];
        NEED(pread(threads_fd, back, RECORD, place) == RECORD && memcmp(back, record, RECORD) == 0);
    }
    return NULL;
}

static void children(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(fd >= 0);
    put(fd, "parent\n");

    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        put(fd, "forked\n");
        if (fork() == 0) {
            put(fd, "grandchild\n");
            _exit(0);
        }
        int status;
        wait(&status);
        _exit(status != 0);
    }
    ended_well(pid);
    NEED(at(fd) == 7 + 7 + 11);
    put(fd, "parent again\n");

    pid = vfork();
    if (pid == 0) {
        // No more than a system call: memory is the parent's.
        _exit(write(fd, "vforked\n", 8) != 8);
    }
    ended_well(pid);
    put(fd, "after vfork\n");

    char number[12];
    snprintf(number, sizeof number, "%d", fd);
    char *shell[] = {"sh", "-c", "echo by a shell >&$0; /bin/echo and its program >&$0", number, NULL};
    posix_spawn_file_actions_t actions;
    NEED(posix_spawn_file_actions_init(&actions) == 0);
    NEED(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
    NEED(posix_spawnp(&pid, "sh", &actions, NULL, shell, environ) == 0);
    ended_well(pid);
    char *echo[] = {"echo", "by standard output", NULL};
    NEED(posix_spawnp(&pid, "/bin/echo", &actions, NULL, echo, environ) == 0);
    ended_well(pid);
    posix_spawn_file_actions_destroy(&actions);
    put(fd, "after spawn\n");

    // A copy of a descriptor is the same description; another opening is not.
    int copy = dup(fd);
    put(copy, "by dup\n");
    NEED(at(copy) == at(fd));
    NEED(fcntl(fd, F_DUPFD_CLOEXEC, 100) >= 100);
    int other = open(path, O_WRONLY);
    NEED(other >= 0 && at(other) == 0);
    put(other, "PARENT\n");
    NEED(dup2(copy, other) == other);
    put(other, "by dup2\n");
    NEED(close(copy) == 0 && close(fd) == 0);
    put(other, "the last\n");

    // Handed over a socket.
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid = fork();
    if (pid == 0) {
        char byte;
        char space[CMSG_SPACE(sizeof(int))];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        NEED(recvmsg(pair[1], &message, 0) == 1);
        int given;
        memcpy(&given, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof given);
        put(given, "by a given one\n");
        _exit(0);
    }
    int sent = open(path, O_WRONLY | O_APPEND);
    NEED(sent >= 0);
    char byte = 0;
    char space[CMSG_SPACE(sizeof(int))];
    memset(space, 0, sizeof space);
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &sent, sizeof sent);
    NEED(sendmsg(pair[0], &message, 0) == 1);
    ended_well(pid);
    put(sent, "appended\n");
    NEED(close(sent) == 0 && close(other) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);

    // Killed while it writes: all before it counts, and the parent goes on behind.
    fd = open(path, O_WRONLY | O_APPEND);
    pid = fork();
    if (pid == 0) {
        put(fd, "killed\n");
        raise(SIGKILL);
    }
    int status;
    NEED(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    put(fd, "survivor\n");
    NEED(close(fd) == 0);
}

static void standard_streams(const char *path) {
    FILE *file = fopen(path, "a+");
    NEED(file != NULL);
    fprintf(file, "by stdio %d\n", 1);
    // Unflushed text belongs to whoever flushes; a child that ends by _exit does not.
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    ended_well(pid);
    NEED(fflush(file) == 0);
    pid = fork();
    if (pid == 0) {
        fprintf(file, "by stdio of a child\n");
        exit(0);
    }
    ended_well(pid);
    NEED(fseek(file, 0, SEEK_SET) == 0);
    char line[100];
    NEED(fgets(line, sizeof line, file) != NULL && strcmp(line, "PARENT\n") == 0);
    NEED(fseek(file, 0, SEEK_END) == 0);
    file = freopen(path, "r+", file);
    NEED(file != NULL);
    NEED(fgetc(file) == 'P');
    NEED(ungetc('p', file) == 'p' && fgetc(file) == 'p');
    NEED(fseek(file, 1, SEEK_SET) == 0 && fputc('a', file) == 'a');
    NEED(setvbuf(file, NULL, _IONBF, 0) == 0);
    NEED(fseek(file, 2, SEEK_SET) == 0 && fputc('r', file) == 'r');
    NEED(ftell(file) == 3);
    NEED(fclose(file) == 0);
    FILE *standard = freopen(path, "a", stdout);
    NEED(standard != NULL);
    printf("by printf\n");
    NEED(system("echo by system") == -1 || fflush(stdout) == 0);
    NEED(fclose(stdout) == 0);
}

static void at_directories(const char *path) {
    NEED(mkdir("at.d", 0755) == 0 || errno == EEXIST);
    int directory = open("at.d", O_RDONLY | O_DIRECTORY);
    NEED(directory >= 0);
    int fd = openat(directory, "file", O_RDWR | O_CREAT | O_EXCL, 0600);
    NEED(fd >= 0);
    struct iovec parts[3] = {{"vec", 3}, {"", 0}, {"tored", 5}};
    NEED(writev(fd, parts, 3) == 8);
    NEED(pwritev(fd, parts, 3, 100) == 8 && at(fd) == 8);
    char back[16];
    struct iovec into[2] = {{back, 5}, {back + 5, 11}};
    NEED(preadv(fd, into, 2, 0) == 16 && memcmp(back, "vectored\0\0\0\0\0\0\0\0", 16) == 0);
    NEED(linkat(directory, "file", AT_FDCWD, "linked", 0) == 0);
    NEED(fchdir(directory) == 0);
    NEED(access("../linked", R_OK) == 0);
    NEED(renameat(directory, "file", AT_FDCWD, "renamed") == 0);
    NEED(unlinkat(directory, "renamed", 0) == 0 && unlink("../linked") == 0);
    struct stat about;
    NEED(fstat(fd, &about) == 0 && about.st_nlink == 0 && about.st_size == 108);
    NEED(pread(fd, back, 16, 100) == 8);
    NEED(chdir("..") == 0 && close(fd) == 0 && close(directory) == 0 && rmdir("at.d") == 0);

    // What gets its name when it is whole, where there is such a thing.
    fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0) {
        enum { WHOLE = 8 << 20, STEP = 64 << 10 };
        static char step[STEP], found[STEP];
        for (int i = 0; i < WHOLE / STEP; i++) {
            memset(step, i + 1, STEP);
            NEED(write(fd, step, STEP) == STEP);
        }
        NEED(fstat(fd, &about) == 0 && about.st_nlink == 0 && about.st_size == WHOLE);
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        NEED(linkat(AT_FDCWD, self, AT_FDCWD, "given", AT_SYMLINK_FOLLOW) == 0);
        NEED(close(fd) == 0 && (fd = open("given", O_RDONLY)) >= 0);
        for (int i = 0; i < WHOLE / STEP; i++) {
            memset(step, i + 1, STEP);
            NEED(read(fd, found, STEP) == STEP && memcmp(step, found, STEP) == 0);
        }
        NEED(close(fd) == 0 && unlink("given") == 0);
    }
    NEED(openat(-1, "x", O_RDONLY) == -1 && errno == EBADF);
    NEED(open(path, O_RDONLY | O_DIRECTORY) == -1 && errno == ENOTDIR);
    fd = open(path, O_RDONLY);
    NEED(write(fd, "x", 1) == -1 && errno == EBADF);
    NEED(lseek(fd, -1, SEEK_SET) == -1 && errno == EINVAL);
    NEED(pread(fd, back, 1, -1) == -1 && errno == EINVAL);
    NEED(read(fd, nowhere, 100) == -1 && errno == EFAULT);
    NEED(close(fd) == 0 && read(fd, back, 1) == -1 && errno == EBADF);
    fd = open(path, O_WRONLY);
    NEED(read(fd, back, 1) == -1 && errno == EBADF && close(fd) == 0);
}

int main(int count, char **words) {
    NEED(count == 2);
    children(words[1]);
    at_directories(words[1]);

    threads_fd = open("threads", O_RDWR | O_CREAT | O_TRUNC, 0644);
    NEED(threads_fd >= 0);
    pthread_t handles[THREADS];
    for (intptr_t rank = 0; rank < THREADS; rank++)
        NEED(pthread_create(&handles[rank], NULL, thread, (void *)rank) == 0);
    for (int rank = 0; rank < THREADS; rank++) NEED(pthread_join(handles[rank], NULL) == 0);
    struct stat about;
    NEED(fstat(threads_fd, &about) == 0 && about.st_size == THREADS * RECORDS * RECORD);
    for (int index = 0; index < THREADS * RECORDS; index++) {
        char record[RECORD];
        NEED(read(threads_fd, record, RECORD) == RECORD);
        for (int byte = 0; byte < RECORD; byte++) NEED(record[byte] == 'a' + index % THREADS);
    }
    NEED(pread(threads_fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    NEED(pwrite(threads_fd, nowhere, 100, 0) == -1 && errno == EFAULT);
    NEED(close(threads_fd) == 0);
    standard_streams(words[1]);
    return 0;
}
