/* hints.h - what an MPI_Info says of a file. */
#ifndef WEIR_MPI_HINTS_H
#define WEIR_MPI_HINTS_H

#include "back.h"

/* Three-valued hints of ROMIO's: enable, disable, automatic. */
enum hint { HINT_AUTOMATIC, HINT_ENABLE, HINT_DISABLE };

struct hints {
    enum hint cb_read, cb_write;   /* romio_cb_read, romio_cb_write: two-phase in collective calls */
    enum hint ds_read, ds_write;   /* romio_ds_*: accepted and shown; there is no data sieving */
    int cb_nodes;                  /* aggregators; 0: automatic */
    long cb_buffer_size;           /* bytes that an aggregator moves in one round */
    long ind_rd_buffer_size;       /* accepted and shown: no buffer is used */
    long ind_wr_buffer_size;
    uint64_t striping_unit;        /* stripe size in bytes; 0: not said */
    uint32_t striping_factor;      /* stripe count; 0: not said */
    int file_perm;                 /* permission bits of a file that is made, -1: not said */
};

/* What is in force where nothing is said. */
extern const struct hints hints_default;

/* Takes over what info says and what is well-formed; the rest is left, as MPI wants it. */
void hints_read(MPI_Info info, struct hints *hints);

/* A new info that shows what is in force. An MPI error class. */
int hints_show(const struct hints *hints, MPI_Info *info);

#endif
