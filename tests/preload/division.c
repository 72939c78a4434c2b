/* Processes that divide, in every way there is, and go on working with what they share. */
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/socket.h>

extern char **environ;

enum { LENGTH = 100 * KIB };
static unsigned char memory[LENGTH];

/* Two processes take turns by these. */
static int to_child[2], to_parent[2];

static void turns(void)
{
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
}

static void tell(int *way)
{
    EQUAL(write(way[1], "x", 1), 1);
}

static void wait_for(int *way)
{
    char byte;
    EQUAL(read(way[0], &byte, 1), 1);
}

static int made(const char *name, size_t length)
{
    int fd = borrowed(name, O_CREAT | O_RDWR);
    for (size_t at = 0; at < length; at += sizeof memory) {
        size_t part = length - at < sizeof memory ? length - at : sizeof memory;
        fill(memory, 1, at, part);
        EQUAL(pwrite(fd, memory, part, (off_t)at), part);
    }
    return fd;
}

static void reads_next(int fd, uint64_t *at)
{
    memset(memory, 0, sizeof memory);
    EQUAL(read(fd, memory, LENGTH), LENGTH);
    CHECK(filled(memory, 1, *at, LENGTH));
    *at += LENGTH;
}

/* Each in turn reads on where the other one stopped. */
static void alternates(int fd, int child)
{
    for (int round = 0; round < 4; round++) {
        uint64_t at = (uint64_t)(2 * round + child) * LENGTH;
        if (child || round) wait_for(child ? to_child : to_parent);
        EQUAL(lseek(fd, 0, SEEK_CUR), at);
        reads_next(fd, &at);
        tell(child ? to_parent : to_child);
    }
}

static void forked(void)
{
    warm();
    turns();
    int fd = made("f", 8 * LENGTH);
    EQUAL(lseek(fd, 0, SEEK_SET), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alternates(fd, 1);
        /* By connections of its own. */
        borrow(fd);
        DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, LENGTH), LENGTH));
        CHECK(filled(memory, 1, LENGTH, LENGTH));
        fill(memory, 2, 0, LENGTH);
        DIRECTLY(1, EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH));
        /* What it opens by itself is its own. */
        int own = borrowed("own", O_CREAT | O_RDWR);
        DIRECTLY(1, EQUAL(write(own, memory, LENGTH), LENGTH));
        holds(own, 2, 0, LENGTH);
        _exit(0);
    }
    alternates(fd, 0);
    ends_well(child);
    holds(fd, 2, 0, LENGTH);
    holds(fd, 1, LENGTH, LENGTH);
    DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, LENGTH), LENGTH));
    fill(memory, 3, 0, LENGTH);
    DIRECTLY(1, EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH));
    holds(fd, 3, 0, LENGTH);
    EQUAL(access("own", F_OK), 0);
}

/* Parent and children at work at the same time, some of them killed. */
static void killed_children(void)
{
    warm();
    int fd = made("f", 4 * LENGTH);
    for (int round = 0; round < 6; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (unsigned turn = 0;; turn++) {
                fill(memory, turn, 0, LENGTH);
                if (pwrite(fd, memory, LENGTH, 16 * LENGTH) != LENGTH) _exit(1);
                if (pread(fd, memory, LENGTH, LENGTH) != LENGTH || !filled(memory, 1, LENGTH, LENGTH)) _exit(1);
            }
        }
        for (int turn = 0; turn < 10 + round; turn++) holds(fd, 1, LENGTH, 3 * LENGTH);
        EQUAL(kill(child, SIGKILL), 0);
        int status;
        EQUAL(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        holds(fd, 1, 0, 4 * LENGTH);
        DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, 0), LENGTH));
    }
}

/* Children of children, and many at once. */
static void generations(void)
{
    warm();
    int fd = made("f", LENGTH);
    for (unsigned child = 0; child < 4; child++) {
        if (fork() == 0) {
            pid_t grandchild = fork();
            unsigned number = 2 * child + (grandchild == 0);
            borrow(fd);
            fill(memory, 10 + number, 0, LENGTH);
            EQUAL(pwrite(fd, memory, LENGTH, (1 + (off_t)number) * LENGTH), LENGTH);
            if (grandchild) ends_well(grandchild);
            _exit(0);
        }
    }
    for (int child = 0; child < 4; child++) {
        int status;
        CHECK(wait(&status) > 0);
        EQUAL(status, 0);
    }
    unsigned char *expected = allocate(LENGTH);
    for (unsigned number = 0; number < 8; number++) {
        fill(expected, 10 + number, 0, LENGTH);
        EQUAL(bare_pread(fd, memory, LENGTH, (1 + (off_t)number) * LENGTH), LENGTH);
        CHECK(memcmp(memory, expected, LENGTH) == 0);
    }
}

/* As the kernel divides it, past the C library. */
static void bare_clone(void)
{
    warm();
    turns();
    int fd = made("f", 8 * LENGTH);
    EQUAL(lseek(fd, 0, SEEK_SET), 0);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    CHECK(child >= 0);
    if (child == 0) {
        alternates(fd, 1);
        EQUAL(close(dup(fd)), 0);
        int own = borrowed("own", O_CREAT | O_RDWR);
        fill(memory, 2, 0, LENGTH);
        for (int i = 0; i < 20; i++) {
            /* The parent's are counted too. */
            uint64_t before = direct();
            EQUAL(pwrite(own, memory, LENGTH, 0), LENGTH);
            CHECK(direct() > before);
            EQUAL(pread(fd, memory, LENGTH, 0), LENGTH);
            fill(memory, 2, 0, LENGTH);
        }
        holds(own, 2, 0, LENGTH);
        syscall(SYS_exit_group, 0);
    }
    alternates(fd, 0);
    for (int i = 0; i < 20; i++) holds(fd, 1, 0, 8 * LENGTH);
    ends_well(child);
    DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, 0), LENGTH));
    CHECK(filled(memory, 1, 0, LENGTH));
}

static char *const cat[] = {"cat", NULL};

/* The child of a `vfork` has our memory: what it closes there stays open here. */
static void vforked(void)
{
    warm();
    int in = made("in", 3 * LENGTH), out = borrowed("out", O_CREAT | O_RDWR | O_CLOEXEC);
    EQUAL(lseek(in, LENGTH, SEEK_SET), LENGTH);
    for (int round = 0; round < 3; round++) {
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            /* As shells do. */
            if (dup2(in, 0) != 0 || dup2(out, 1) != 1) _exit(1);
            int spare = dup(out);
            close(in);
            close(out);
            close(spare);
            closefrom(3);
            execvp(cat[0], cat);
            _exit(1);
        }
        ends_well(child);
        /* It has moved the position that it shares with us. */
        EQUAL(lseek(in, 0, SEEK_CUR), 3 * LENGTH);
        EQUAL(lseek(out, 0, SEEK_CUR), 2 * LENGTH * (round + 1));
        DIRECTLY(1, EQUAL(pread(in, memory, LENGTH, LENGTH), LENGTH));
        CHECK(filled(memory, 1, LENGTH, LENGTH));
        EQUAL(bare_pread(out, memory, LENGTH, 2 * LENGTH * round), LENGTH);
        CHECK(filled(memory, 1, LENGTH, LENGTH));
        EQUAL(lseek(in, LENGTH, SEEK_SET), LENGTH);
        /* One that fails to execute, and one within another. */
        child = vfork();
        if (child == 0) {
            close(in);
            _exit(7);
        }
        int status;
        EQUAL(waitpid(child, &status, 0), child);
        EQUAL(WEXITSTATUS(status), 7);
        DIRECTLY(1, EQUAL(pread(in, memory, LENGTH, 0), LENGTH));
    }
    int later = borrowed("later", O_CREAT | O_RDWR);
    DIRECTLY(1, EQUAL(write(later, memory, LENGTH), LENGTH));
}

/* A child that was given a descriptor, even one that executing would close, writes at the position
   that we share with it, at the same time as we. */
static void writes_with(int way)
{
    int fd = borrowed("both", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC);
    enum { LINES = 300 };
    static char *const writer[] = {"bash", "-c", "for ((i = 0; i < 300; i++)); do echo childrens; done", NULL};
    pid_t child;
    if (way == 0) {
        child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            dup2(fd, 1);
            execvp(writer[0], writer);
            _exit(1);
        }
    } else if (way >= 3) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0 && way == 3) {
            for (int i = 0; i < LINES; i++) EQUAL(write(fd, "childrens\n", 10), 10);
            _exit(0);
        } else if (child == 0) {
            EQUAL(fcntl(fd, F_DUPFD, 100), 100);
            EQUAL(dup2(100, 1), 1);
            execvp(writer[0], writer);
            _exit(1);
        }
    } else {
        posix_spawn_file_actions_t actions;
        EQUAL(posix_spawn_file_actions_init(&actions), 0);
        EQUAL(posix_spawn_file_actions_adddup2(&actions, fd, 1), 0);
        EQUAL((way == 1 ? posix_spawn : posix_spawnp)(&child, way == 1 ? "/bin/bash" : "bash", &actions, NULL, writer, environ), 0);
        EQUAL(posix_spawn_file_actions_destroy(&actions), 0);
    }
    for (int i = 0; i < LINES; i++) EQUAL(write(fd, "parentals\n", 10), 10);
    ends_well(child);
    FILE *file = fopen("both", "r");
    CHECK(file != NULL);
    char line[32];
    int children = 0, parents = 0;
    while (fgets(line, sizeof line, file)) {
        children += strcmp(line, "childrens\n") == 0;
        parents += strcmp(line, "parentals\n") == 0;
    }
    EQUAL(children, LINES);
    EQUAL(parents, LINES);
    fclose(file);
    close(fd);
}

static void children_that_write(void)
{
    warm();
    for (int way = 0; way < 5; way++) writes_with(way);
}

static char *const nothing[] = {"true", NULL};

/* Starts a program in one of four ways, and waits for it. A child of vfork hands a descriptor on, if there is one. */
static void starts(int way, int handed_on)
{
    pid_t child;
    switch (way) {
    case 0:
        child = vfork();
        if (child == 0) {
            if (handed_on >= 0) fcntl(handed_on, F_SETFD, 0);
            execvp(nothing[0], nothing);
            _exit(1);
        }
        break;
    case 1: EQUAL(posix_spawnp(&child, nothing[0], NULL, NULL, nothing, environ), 0); break;
    case 2: EQUAL(pclose(popen("true", "r")), 0); return;
    default: EQUAL(system("true"), 0); return;
    }
    ends_well(child);
}

/* What is closed by executing started programs do not have, unless it is handed on to them: at others the library goes
   on by itself. */
static void started(void)
{
    warm();
    fill(memory, 1, 0, LENGTH);
    enum { FLAGS = O_CREAT | O_TRUNC | O_RDWR };
    for (int way = 0; way < 4; way++) {
        int own = borrowed("own", FLAGS | O_CLOEXEC), inherited = borrowed("inherited", FLAGS);
        int unused = open("own", O_RDWR | O_CLOEXEC), early = fcntl(own, F_DUPFD_CLOEXEC, 200);
        starts(way, -1);
        DIRECTLY(1, EQUAL(write(own, memory, LENGTH), LENGTH));
        DIRECTLY(1, EQUAL(write(early, memory, LENGTH), LENGTH));
        DIRECTLY(0, EQUAL(write(inherited, memory, LENGTH), LENGTH));
        borrow(unused);
        DIRECTLY(1, EQUAL(read(unused, memory, LENGTH), LENGTH));
        close(own);
        close(inherited);
        close(unused);
        close(early);
    }
    int own = borrowed("own", FLAGS | O_CLOEXEC), handed_on = borrowed("handed on", FLAGS | O_CLOEXEC);
    int unused = open("handed on", O_RDWR | O_CLOEXEC);
    starts(0, handed_on);
    DIRECTLY(1, EQUAL(write(own, memory, LENGTH), LENGTH));
    DIRECTLY(0, EQUAL(write(handed_on, memory, LENGTH), LENGTH));
    /* One that the library has not looked at yet. */
    starts(0, unused);
    borrow(unused);
    DIRECTLY(1, EQUAL(write(own, memory, LENGTH), LENGTH));
    DIRECTLY(0, EQUAL(read(unused, memory, LENGTH), LENGTH));
    /* Given before it was there. */
    posix_spawn_file_actions_t actions;
    EQUAL(posix_spawn_file_actions_init(&actions), 0);
    EQUAL(posix_spawn_file_actions_adddup2(&actions, 201, 5), 0);
    EQUAL(fcntl(own, F_DUPFD_CLOEXEC, 201), 201);
    pid_t child;
    EQUAL(posix_spawnp(&child, nothing[0], &actions, NULL, nothing, environ), 0);
    EQUAL(posix_spawn_file_actions_destroy(&actions), 0);
    ends_well(child);
    DIRECTLY(0, EQUAL(write(own, memory, LENGTH), LENGTH));
    DIRECTLY(0, EQUAL(write(201, memory, LENGTH), LENGTH));
}

/* What a child of fork does with a descriptor before it ends: each is one of these, and whether the library goes on by
   itself afterwards. */
enum { ENDS, EXECUTES, KEEPS, DUPLICATES, SPAWNS, VFORKS, SENDS, HAS_A_CHILD, WAYS };

static void send_to(int socket, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char byte = 'x';
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    EQUAL(sendmsg(socket, &message, 0), 1);
}

static void in_child(int way, int fd, const int *sockets)
{
    static char *const sleeper[] = {"sleep", "100", NULL};
    posix_spawn_file_actions_t actions;
    pid_t other;
    uint64_t at = 0;
    wait_for(to_child);
    EQUAL(lseek(fd, 0, SEEK_CUR), LENGTH);
    at = LENGTH;
    DIRECTLY(0, reads_next(fd, &at));
    switch (way) {
    case EXECUTES:
        tell(to_parent);
        execvp(sleeper[0], sleeper);
        _exit(1);
    case KEEPS: EQUAL(fcntl(fd, F_SETFD, 0), 0); break;
    case DUPLICATES: EQUAL(dup2(fd, 0), 0); break;
    case SPAWNS:
        EQUAL(posix_spawn_file_actions_init(&actions), 0);
        EQUAL(posix_spawn_file_actions_adddup2(&actions, fd, 0), 0);
        EQUAL(posix_spawnp(&other, "true", &actions, NULL, nothing, environ), 0);
        ends_well(other);
        break;
    case VFORKS:
        other = vfork();
        if (other == 0) {
            dup2(fd, 0);
            execvp(nothing[0], nothing);
            _exit(1);
        }
        ends_well(other);
        break;
    case SENDS: send_to(sockets[1], fd); break;
    case HAS_A_CHILD:
        if (fork() == 0) {
            wait_for(to_child);
            uint64_t at = 3 * LENGTH;
            DIRECTLY(0, reads_next(fd, &at));
            /* What it opens itself it may hand on. */
            int own = open("f", O_RDONLY | O_CLOEXEC);
            EQUAL(dup2(own, 0), 0);
            EQUAL(dup2(to_parent[1], 1), 1);
            _exit(0);
        }
        break;
    }
    tell(to_parent);
    _exit(0);
}

static pid_t waiting_child(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        pause();
        _exit(1);
    }
    return child;
}

static void killed(pid_t child)
{
    EQUAL(kill(child, SIGKILL), 0);
    EQUAL(waitpid(child, NULL, 0), child);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory)) count++;
    EQUAL(closedir(directory), 0);
    return count;
}

/* Until children of fork have ended or executed a program, they have what is open; then the library goes on by itself,
   unless one has handed it on. */
static void lent_to_children(void)
{
    warm();
    close(made("f", 8 * LENGTH));
    for (int way = 0; way < 2 * WAYS; way++) {
        turns();
        int sockets[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
        int fd = open("f", O_RDWR | O_CLOEXEC), other = open("f", O_RDWR);
        borrow(other);
        uint64_t at = 0;
        /* Borrowed before there is a child, or while there is one. */
        if (way < WAYS) {
            borrow(fd);
            DIRECTLY(1, reads_next(fd, &at));
        }
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) in_child(way % WAYS, fd, sockets);
        if (way >= WAYS) borrow(fd);
        if (at == 0) DIRECTLY(0, reads_next(fd, &at));
        DIRECTLY(0, EQUAL(read(other, memory, LENGTH), LENGTH));
        tell(to_child);
        wait_for(to_parent);
        at += LENGTH;
        if (way % WAYS != EXECUTES) ends_well(child);
        /* For it to have executed something. */
        usleep(way % WAYS == EXECUTES ? 200000 : 0);
        int handed_on = way % WAYS >= KEEPS;
        DIRECTLY(!handed_on, reads_next(fd, &at));
        if (way % WAYS == HAS_A_CHILD) {
            tell(to_child);
            at += LENGTH;
            usleep(200000);
            DIRECTLY(1, reads_next(fd, &at));
        }
        DIRECTLY(!handed_on || way % WAYS == HAS_A_CHILD, reads_next(fd, &at));
        /* What it has inherited it may have given to others. */
        DIRECTLY(0, EQUAL(read(other, memory, LENGTH), LENGTH));
        if (way % WAYS == EXECUTES) killed(child);
        EQUAL(close(fd), 0);
        EQUAL(close(other), 0);
    }
    int before = open_descriptors();
    /* One of two that have what the library has not borrowed yet, and what it has. */
    int lent = borrowed("f", O_RDWR | O_CLOEXEC), undecided = open("f", O_RDWR | O_CLOEXEC);
    pid_t two[] = {waiting_child(), waiting_child()};
    for (int i = 0; i < 2; i++) {
        killed(two[i]);
        borrow(undecided);
        uint64_t at = (uint64_t)i * LENGTH, same = at;
        DIRECTLY(i, reads_next(lent, &at));
        DIRECTLY(i, reads_next(undecided, &same));
    }
    EQUAL(close(lent) | close(undecided), 0);
    /* Several at once, more than the library tells apart, and one after the other. */
    int first = borrowed("f", O_RDWR | O_CLOEXEC), second = borrowed("f", O_RDWR | O_CLOEXEC);
    pid_t children[70];
    for (int i = 0; i < 70; i++) {
        children[i] = waiting_child();
        if (i == 3) EQUAL(close(second), 0);
        if (i == 3) second = borrowed("f", O_RDWR | O_CLOEXEC);
    }
    uint64_t at = 0;
    DIRECTLY(0, reads_next(first, &at));
    int third = borrowed("f", O_RDWR | O_CLOEXEC);
    at = 0;
    DIRECTLY(1, reads_next(third, &at));
    for (int i = 0; i < 70; i++) killed(children[i]);
    DIRECTLY(1, reads_next(third, &at));
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        ends_well(child);
        EQUAL(lseek(third, 0, SEEK_SET), 0);
        at = 0;
        DIRECTLY(1, reads_next(third, &at));
    }
    /* Nothing is left over of them: the next one finds out. */
    pid_t last = fork();
    if (last == 0) _exit(0);
    ends_well(last);
    EQUAL(close(first) | close(second) | close(third), 0);
    CHECK(open_descriptors() <= before + 1);
}

static void shells(void)
{
    warm();
    int fd = made("in", 2 * LENGTH);
    /* Children write to one descriptor one after the other, each begun by a shell. */
    EQUAL(system("{ cat in; echo a; cat in; (echo b); } >out"), 0);
    struct stat status;
    EQUAL(stat("out", &status), 0);
    EQUAL(status.st_size, 4 * LENGTH + 4);
    int out = borrowed("out", O_RDWR);
    DIRECTLY(1, EQUAL(pread(out, memory, LENGTH, 0), LENGTH));
    CHECK(filled(memory, 1, 0, LENGTH));
    EQUAL(pread(out, memory, LENGTH, 2 * LENGTH), LENGTH);
    CHECK(memcmp(memory, "a\n", 2) == 0 && filled(memory + 2, 1, 0, LENGTH - 2));
    /* One that inherits our descriptor and goes on where we stopped, and we where it did. */
    EQUAL(lseek(out, 0, SEEK_SET), 0);
    EQUAL(write(out, "begun ", 6), 6);
    EQUAL(dup2(out, 9), 9);
    EQUAL(system("echo -n 'done by dd' | dd bs=10 status=none >&9"), 0);
    EQUAL(write(out, " ended", 6), 6);
    EQUAL(pread(out, memory, 22, 0), 22);
    CHECK(memcmp(memory, "begun done by dd ended", 22) == 0);
    /* Through pipes. */
    FILE *pipe = popen("cat in", "r");
    CHECK(pipe != NULL);
    for (int part = 0; part < 2; part++) {
        EQUAL(fread(memory, 1, LENGTH, pipe), LENGTH);
        CHECK(filled(memory, 1, (uint64_t)part * LENGTH, LENGTH));
    }
    EQUAL(pclose(pipe), 0);
    pipe = popen("cat >piped", "w");
    CHECK(pipe != NULL);
    EQUAL(fwrite(memory, 1, LENGTH, pipe), LENGTH);
    EQUAL(pclose(pipe), 0);
    int piped = borrowed("piped", O_RDONLY);
    holds(piped, 1, LENGTH, 0);
    DIRECTLY(1, EQUAL(pread(piped, memory, LENGTH, 0), LENGTH));
    CHECK(filled(memory, 1, LENGTH, LENGTH));
    DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, 0), LENGTH));
    EQUAL(system("exit 3"), 3 << 8);
    EQUAL(system("set -e; for i in 1 2 3; do (dd if=in of=copy$i bs=64k status=none) & done; wait; cmp in copy2; "
                 "exec 7<>in; head -c 10 <&7 >/dev/null; dd bs=1 count=1 <&7 status=none >/dev/null; cat copy3 | cmp - in"), 0);
}

static atomic_int ended;

static void *transfers(void *argument)
{
    int fd = *(int *)argument;
    unsigned char *own = allocate(LENGTH);
    while (!ended) {
        for (int part = 0; part < 4; part++) {
            EQUAL(pread(fd, own, LENGTH, part * LENGTH), LENGTH);
            CHECK(filled(own, 1, (uint64_t)part * LENGTH, LENGTH));
        }
        int other = open("own", O_CREAT | O_RDWR, 0600);
        CHECK(other >= 0);
        fill(own, 5, 0, LENGTH);
        EQUAL(pwrite(other, own, LENGTH, 0), LENGTH);
        EQUAL(close(other), 0);
    }
    free(own);
    return NULL;
}

/* Other threads are in the middle of transfers, of opening and closing. */
static void with_threads(void)
{
    warm();
    int fd = made("f", 4 * LENGTH);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, transfers, &fd) == 0);
    for (int round = 0; round < 60; round++) {
        pid_t child = round % 3 == 2 ? vfork() : fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (round % 3 == 2) {
                execlp("true", "true", NULL);
                _exit(1);
            }
            alarm(30);
            char byte;
            if (round % 2) {
                int own = open("childs", O_CREAT | O_RDWR, 0600);
                static unsigned char mine[LENGTH];
                fill(mine, 6, 0, LENGTH);
                for (int i = 0; i < 3; i++) EQUAL(pwrite(own, mine, LENGTH, 0), LENGTH);
                holds(own, 6, 0, LENGTH);
                holds(fd, 1, 0, LENGTH);
            }
            EQUAL(pread(fd, &byte, 1, 0), 1);
            _exit(0);
        }
        ends_well(child);
    }
    ended = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    DIRECTLY(1, EQUAL(pread(fd, memory, LENGTH, 0), LENGTH));
}

/* Begun anew with descriptors that it inherits: one shared position, by the kernel. */
static void executed(void)
{
    warm();
    int fd = made("f", 4 * LENGTH);
    EQUAL(lseek(fd, LENGTH, SEEK_SET), LENGTH);
    EQUAL(dup2(fd, 0), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "division", "inherits", NULL);
        _exit(1);
    }
    ends_well(child);
    EQUAL(lseek(fd, 0, SEEK_CUR), 3 * LENGTH);
    holds(fd, 1, 0, 4 * LENGTH);
}

static void inherits(void)
{
    /* By the harness it is called without what it would inherit. */
    if (lseek(0, 0, SEEK_CUR) != LENGTH) return;
    warm();
    borrow(0);
    uint64_t at = LENGTH;
    DIRECTLY(0, reads_next(0, &at));
    DIRECTLY(0, reads_next(0, &at));
    DIRECTLY(1, EQUAL(pread(0, memory, LENGTH, 0), LENGTH));
    CHECK(filled(memory, 1, 0, LENGTH));
    if (getenv("GRANDCHILD")) EQUAL(kill(atoi(getenv("GRANDCHILD")), SIGKILL), 0);
}

/* Executes this program for one of its cases; a library's function of each kind. */
static void execute(int way, char *name)
{
    char *const arguments[] = {"division", name, NULL};
    char *const self = realpath("/proc/self/exe", NULL);
    switch (way) {
    case 0: execve(self, arguments, environ); break;
    case 1: execv(self, arguments); break;
    case 2: execl(self, "division", name, NULL); break;
    case 3:
        setenv("PATH", "", 1);
        EQUAL(symlink(self, "division") == 0 || errno == EEXIST, 1);
        setenv("PATH", "/nowhere:.", 1);
        execvp("division", arguments);
        break;
    }
    _exit(1);
}

/* What a process alone has open is the program's that it executes: read and written past the kernel, at one position for
   all of its descriptors. Anything that others may have is not. */
static void left_to_programs(void)
{
    warm();
    close(made("f", 8 * LENGTH));
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = open("f", O_RDWR);
            EQUAL(dup2(fd, 0), 0);
            EQUAL(dup2(fd, 1), 1);
            if (round % 2) borrow(0);
            if (round == 4 || round == 5) {
                /* One of its names is closed by executing, and one is another file's. */
                fcntl(1, F_SETFD, FD_CLOEXEC);
                EQUAL(close(fd), 0);
                EQUAL(open("f", O_RDWR), fd);
            }
            EQUAL(lseek(0, LENGTH, SEEK_SET), LENGTH);
            execute(round % 4, round == 4 || round == 5 ? "takes_one_over" : "takes_over");
        }
        ends_well(child);
    }
    /* A child has it, too, made before or after an attempt to execute something. */
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = open("f", O_RDWR);
            EQUAL(dup2(fd, 0), 0);
            if (round == 1) borrow(0);
            EQUAL(lseek(0, LENGTH, SEEK_SET), LENGTH);
            char *const arguments[] = {"none", NULL};
            if (round) CHECK(execv("/proc/self/exe/none", arguments) < 0);
            if (round == 2) {
                /* An interpreter that is no program's: a file that the library believes in and the kernel does not. */
                int script = open("script", O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
                EQUAL(write(script, "#!/bin/sh\n", 10), 10);
                EQUAL(fchmod(script, 0644), 0);
                CHECK(execv("script", arguments) < 0);
                EQUAL(errno, EACCES);
                EQUAL(fcntl(0, 11), 55);
            }
            pid_t grandchild = fork();
            if (grandchild == 0) {
                alarm(60);
                pause();
                _exit(0);
            }
            char number[16];
            snprintf(number, sizeof number, "%d", (int)grandchild);
            setenv("GRANDCHILD", number, 1);
            execute(round, "inherits");
        }
        ends_well(child);
    }
    /* By shells, of programs that do enough to be worth connections. */
    int big = open("big", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    EQUAL(ftruncate(big, 32 * MIB), 0);
    char *const redirected[] = {"exec dd bs=1M status=none <big >/dev/null", "exec dd bs=1M status=none if=/dev/zero count=32 >g",
                                "bash -c 'dd bs=1M status=none if=/dev/zero count=32 2>&1 >g | cat; true'"};
    for (int i = 0; i < 3; i++) {
        uint64_t before = direct();
        EQUAL(system(redirected[i]), 0);
        CHECK(direct() > before + 16);
    }
    struct stat status;
    EQUAL(stat("g", &status), 0);
    EQUAL(status.st_size, 32 * MIB);
}

static void taken_over(int duplicates)
{
    if (lseek(0, 0, SEEK_CUR) != LENGTH) return;
    /* Nothing is to be seen of it. */
    EQUAL(fcntl(0, 11), 0);
    EQUAL(fcntl(0, F_GETOWN), 0);
    warm();
    uint64_t at = LENGTH;
    borrow(0);
    borrow(3);
    DIRECTLY(1, reads_next(0, &at));
    if (duplicates) {
        DIRECTLY(1, reads_next(1, &at));
        DIRECTLY(1, reads_next(3, &at));
    } else {
        uint64_t own = 0;
        EQUAL(fcntl(1, F_GETFD), -1);
        DIRECTLY(1, reads_next(3, &own));
    }
    DIRECTLY(1, reads_next(0, &at));
    EQUAL(lseek(0, 0, SEEK_CUR), at);
    if (duplicates) {
        /* Its stream has a larger buffer than the C library's. */
        fill(memory, 1, at, LENGTH);
        EQUAL(fwrite(memory, 1, LENGTH, stdout), LENGTH);
        EQUAL(lseek(0, 0, SEEK_CUR), at);
        EQUAL(fflush(stdout), 0);
        EQUAL(lseek(0, 0, SEEK_CUR), at + LENGTH);
        EQUAL(lseek(0, (off_t)at, SEEK_SET), at);
    }
    /* Now it has a child. */
    if (fork() == 0) _exit(0);
    EQUAL(wait(NULL) > 0, 1);
    DIRECTLY(0, reads_next(0, &at));
}

static void takes_over(void)
{
    taken_over(1);
}

static void takes_one_over(void)
{
    taken_over(0);
}

static const struct test tests[] = {
    {"forked", forked},
    {"killed_children", killed_children},
    {"generations", generations},
    {"bare_clone", bare_clone},
    {"vforked", vforked},
    {"children_that_write", children_that_write},
    {"started", started},
    {"lent_to_children", lent_to_children},
    {"shells", shells},
    {"with_threads", with_threads},
    {"executed", executed},
    {"inherits", inherits},
    {"left_to_programs", left_to_programs},
    {"takes_over", takes_over},
    {"takes_one_over", takes_one_over},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
