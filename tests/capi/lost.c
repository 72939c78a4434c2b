/* Servers that end while a program works: errors within their time, and no hang. */
#include "check.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>

int main(void)
{
    weir_connect_options options = {.struct_size = sizeof options, .silence_ms = 500};
    weir_pool *pool;
    EQUAL(weir_connect(NULL, &options, &pool), 0);
    weir_file *file = open_with(pool, "/f", O_RDWR | O_CREAT);
    char bytes[100] = "here";
    EQUAL(weir_pwrite(file, bytes, sizeof bytes, 0), sizeof bytes);
    weir_dir *dir;
    EQUAL(weir_opendir(pool, "/", &dir), 0);
    puts("ready");
    fflush(stdout);
    CHECK(getchar() != EOF); /* the servers are gone */

    time_t begin = time(NULL);
    weir_op *op;
    EQUAL(weir_submit_read(file, bytes, sizeof bytes, 0, &op), 0);
    EQUAL(weir_wait(op, 1, NULL), 0);
    EQUAL(weir_wait_any(&op, 1, 1), -ETIMEDOUT);
    EQUAL(weir_pwrite(file, bytes, sizeof bytes, 0), -EIO);
    CHECK(strstr(weir_error_text(), "write /f: ") == weir_error_text());
    CHECK(strstr(weir_error_text(), "not stored") != NULL);
    ssize_t result;
    EQUAL(weir_wait(op, -1, &result), 1);
    EQUAL(result, -EIO);
    weir_op_free(op);
    struct weir_dirent entry;
    EQUAL(weir_readdir(dir, &entry, NULL), -EIO);
    struct weir_stat stat;
    EQUAL(weir_stat(pool, "/f", 0, &stat), -EIO);
    EQUAL(weir_closedir(dir), 0);
    EQUAL(weir_close(file), -EIO);
    EQUAL(weir_disconnect(pool), 0);
    CHECK(time(NULL) - begin < 20);
    return 0;
}
