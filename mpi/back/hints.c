#include "hints.h"
#include "error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct hints hints_default = {
    .cb_buffer_size = 16 << 20,
    .ind_rd_buffer_size = 4 << 20,
    .ind_wr_buffer_size = 512 << 10,
    .file_perm = -1,
};

static bool value_of(MPI_Info info, const char *key, char value[64])
{
    int found = 0;
    return PMPI_Info_get(info, key, 63, value, &found) == MPI_SUCCESS && found;
}

static void read_three(MPI_Info info, const char *key, enum hint *hint)
{
    char value[64];
    if (!value_of(info, key, value))
        return;
    if (strcmp(value, "enable") == 0)
        *hint = HINT_ENABLE;
    else if (strcmp(value, "disable") == 0)
        *hint = HINT_DISABLE;
    else if (strcmp(value, "automatic") == 0)
        *hint = HINT_AUTOMATIC;
}

/* A whole number from least to most. */
static bool read_number(MPI_Info info, const char *key, int base, long least, long most, long *out)
{
    char value[64], *end;
    if (!value_of(info, key, value))
        return false;
    long number = strtol(value, &end, base);
    if (end == value || *end != '\0' || number < least || number > most)
        return false;
    *out = number;
    return true;
}

void hints_read(MPI_Info info, struct hints *hints)
{
    long number;
    if (info == MPI_INFO_NULL)
        return;
    /* The standard's own word for both; the particular ones count more. */
    char value[64];
    if (value_of(info, "collective_buffering", value)) {
        enum hint all = strcmp(value, "true") == 0    ? HINT_ENABLE
                        : strcmp(value, "false") == 0 ? HINT_DISABLE
                                                      : HINT_AUTOMATIC;
        if (all != HINT_AUTOMATIC)
            hints->cb_read = hints->cb_write = all;
    }
    read_three(info, "romio_cb_read", &hints->cb_read);
    read_three(info, "romio_cb_write", &hints->cb_write);
    read_three(info, "romio_ds_read", &hints->ds_read);
    read_three(info, "romio_ds_write", &hints->ds_write);
    if (read_number(info, "cb_nodes", 10, 1, INT_MAX, &number))
        hints->cb_nodes = (int)number;
    read_number(info, "cb_buffer_size", 10, 1, LONG_MAX, &hints->cb_buffer_size);
    read_number(info, "ind_rd_buffer_size", 10, 1, LONG_MAX, &hints->ind_rd_buffer_size);
    read_number(info, "ind_wr_buffer_size", 10, 1, LONG_MAX, &hints->ind_wr_buffer_size);
    /* Only what a layout can have; how a file is striped is fixed once it is made. */
    if (read_number(info, "striping_unit", 10, 4096, 1 << 30, &number) && number % 4096 == 0)
        hints->striping_unit = (uint64_t)number;
    if (read_number(info, "striping_factor", 10, -1, INT_MAX, &number) && number != 0)
        hints->striping_factor = number < 0 ? WEIR_STRIPE_ALL : (uint32_t)number;
    if (read_number(info, "file_perm", 8, 0, 07777, &number))
        hints->file_perm = (int)number;
}

int hints_show(const struct hints *hints, MPI_Info *info)
{
    static const char *const words[] = {"automatic", "enable", "disable"};
    const struct {
        const char *key;
        enum hint value;
    } three[] = {{"romio_cb_read", hints->cb_read},
                 {"romio_cb_write", hints->cb_write},
                 {"romio_ds_read", hints->ds_read},
                 {"romio_ds_write", hints->ds_write}};
    const struct {
        const char *key;
        long value; /* 0: not shown */
    } numbers[] = {{"cb_nodes", hints->cb_nodes},
                   {"cb_buffer_size", hints->cb_buffer_size},
                   {"ind_rd_buffer_size", hints->ind_rd_buffer_size},
                   {"ind_wr_buffer_size", hints->ind_wr_buffer_size},
                   {"striping_unit", (long)hints->striping_unit},
                   {"striping_factor", (long)hints->striping_factor}};
    if (PMPI_Info_create(info) != MPI_SUCCESS)
        return error_set(MPI_ERR_NO_MEM, "make info: the MPI refused");
    for (size_t index = 0; index < sizeof three / sizeof *three; index++)
        PMPI_Info_set(*info, three[index].key, words[three[index].value]);
    for (size_t index = 0; index < sizeof numbers / sizeof *numbers; index++) {
        char value[32];
        snprintf(value, sizeof value, "%ld", numbers[index].value);
        if (numbers[index].value != 0)
            PMPI_Info_set(*info, numbers[index].key, value);
    }
    if (hints->file_perm >= 0) {
        char value[32];
        snprintf(value, sizeof value, "%o", (unsigned)hints->file_perm);
        PMPI_Info_set(*info, "file_perm", value);
    }
    return MPI_SUCCESS;
}
