/* view.h - a file view: which bytes of the file the data of an access are. */
#ifndef WEIR_MPI_VIEW_H
#define WEIR_MPI_VIEW_H

#include "back.h"
#include "represent.h"

struct view {
    MPI_Offset displacement;
    MPI_Datatype etype, filetype; /* our own, or predefined */
    const struct representation *representation;
    struct flat *tile;  /* the filetype as it lies in the file */
    int64_t etype_size; /* as it lies in the file */
};

/* Makes a view, for writing too or for reading alone; the datatypes may be freed by the caller. An MPI
 * error class. */
int view_make(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
              const char *representation, bool writable, struct view **out);

void view_free(struct view *view);

/* Bytes of data in an etype, as the file counts them (external32 may differ from memory). */
MPI_Count view_etype_size(const struct view *view);

/* Where a byte of the view's data lies in the file: bytes. */
MPI_Offset view_byte_offset(const struct view *view, MPI_Offset position);

/* Bytes of the view's data that lie before this place in the file. */
MPI_Offset view_position(const struct view *view, MPI_Offset file_offset);

/* What it was made of, as MPI_File_get_view gives it: new datatypes where they are not named ones. */
int view_describe(const struct view *view, MPI_Offset *displacement, MPI_Datatype *etype,
                  MPI_Datatype *filetype, char *representation);

/* MPI_File_get_type_extent: the extent in the file of a datatype of memory. */
int view_type_extent(const struct view *view, MPI_Datatype datatype, MPI_Count *extent);

#endif
