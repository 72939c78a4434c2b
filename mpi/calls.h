/* calls.h - the calls of MPI that the front library stands before, once for all who need the list.
 *
 * To be included with the macros defined that are wanted:
 *   ON_FILE(name)     the first argument is an MPI_File; all others are handed on
 *   ON_REQUESTS(name) may complete or end requests
 * open, close, delete, create_errhandler, Register_datarep, Error_string and Finalize are neither: they
 * stand in front/calls.c.
 *
 * Not here, because a file's handle is a genuine MPI_File: c2f, f2c, set_errhandler,
 * get_errhandler, call_errhandler.
 */
#ifndef ON_FILE
#define ON_FILE(name)
#endif
#ifndef ON_REQUESTS
#define ON_REQUESTS(name)
#endif

/* An access, in the form of MPI 3.1 and in that of MPI 4 with large counts. */
#define ON_FILE_BOTH(name) ON_FILE(name) ON_FILE(name##_c)

ON_FILE(set_size)
ON_FILE(preallocate)
ON_FILE(get_size)
ON_FILE(get_group)
ON_FILE(get_amode)
ON_FILE(set_info)
ON_FILE(get_info)
ON_FILE(set_view)
ON_FILE(get_view)
ON_FILE(seek)
ON_FILE(get_position)
ON_FILE(get_byte_offset)
ON_FILE(seek_shared)
ON_FILE(get_position_shared)
ON_FILE(set_atomicity)
ON_FILE(get_atomicity)
ON_FILE(sync)
ON_FILE_BOTH(get_type_extent)

ON_FILE_BOTH(read_at)
ON_FILE_BOTH(read_at_all)
ON_FILE_BOTH(write_at)
ON_FILE_BOTH(write_at_all)
ON_FILE_BOTH(iread_at)
ON_FILE_BOTH(iread_at_all)
ON_FILE_BOTH(iwrite_at)
ON_FILE_BOTH(iwrite_at_all)
ON_FILE_BOTH(read)
ON_FILE_BOTH(read_all)
ON_FILE_BOTH(write)
ON_FILE_BOTH(write_all)
ON_FILE_BOTH(iread)
ON_FILE_BOTH(iread_all)
ON_FILE_BOTH(iwrite)
ON_FILE_BOTH(iwrite_all)
ON_FILE_BOTH(read_shared)
ON_FILE_BOTH(write_shared)
ON_FILE_BOTH(iread_shared)
ON_FILE_BOTH(iwrite_shared)
ON_FILE_BOTH(read_ordered)
ON_FILE_BOTH(write_ordered)
ON_FILE_BOTH(read_at_all_begin)
ON_FILE_BOTH(write_at_all_begin)
ON_FILE_BOTH(read_all_begin)
ON_FILE_BOTH(write_all_begin)
ON_FILE_BOTH(read_ordered_begin)
ON_FILE_BOTH(write_ordered_begin)
ON_FILE(read_at_all_end)
ON_FILE(write_at_all_end)
ON_FILE(read_all_end)
ON_FILE(write_all_end)
ON_FILE(read_ordered_end)
ON_FILE(write_ordered_end)

ON_REQUESTS(Wait)
ON_REQUESTS(Waitall)
ON_REQUESTS(Waitany)
ON_REQUESTS(Waitsome)
ON_REQUESTS(Test)
ON_REQUESTS(Testall)
ON_REQUESTS(Testany)
ON_REQUESTS(Testsome)
ON_REQUESTS(Request_get_status)
ON_REQUESTS(Request_get_status_all)
ON_REQUESTS(Request_get_status_any)
ON_REQUESTS(Request_get_status_some)
ON_REQUESTS(Request_free)
ON_REQUESTS(Cancel)

#undef ON_FILE
#undef ON_REQUESTS
#undef ON_FILE_BOTH
