! fortran.F90 - the Fortran bindings: compiled three times, with BINDING 1 (mpif.h), 2 (use mpi), 3 (use mpi_f08).
! Usage: mpirun -n N fortran DIRECTORY
#if BINDING == 3
#define FILE_T type(MPI_File)
#define TYPE_T type(MPI_Datatype)
#define STATUS_T type(MPI_Status)
#define STATUS_D
#define REQUEST_T type(MPI_Request)
#define INFO_T type(MPI_Info)
#define GROUP_T type(MPI_Group)
#define HANDLER_T type(MPI_Errhandler)
#else
#define FILE_T integer
#define TYPE_T integer
#define STATUS_T integer
#define STATUS_D (MPI_STATUS_SIZE)
#define REQUEST_T integer
#define INFO_T integer
#define GROUP_T integer
#define HANDLER_T integer
#endif

module counters
    implicit none
    integer :: failures = 0, handled = 0
end module counters

module handlers
contains
    subroutine on_error(file, code)
#if BINDING == 3
        use mpi_f08, only: MPI_File
#endif
        use counters
        FILE_T :: file
        integer :: code
        if (code /= 0) handled = handled + 1
    end subroutine on_error
end module handlers

program fortran
#if BINDING == 2
    use mpi
#elif BINDING == 3
    use mpi_f08
#endif
    use counters
    use handlers
    implicit none
#if BINDING == 1
    include 'mpif.h'
#endif
    integer, parameter :: n = 1000, pieces = 6
    ! Indices count from one; from zero in MPICH 4.0's mpi_f08.
    integer, parameter :: first = merge(0, 1, BINDING == 3)
    integer :: rank, ranks, next, ierr, i, j, amode, count, class, length, indices(pieces), done
    integer, asynchronous :: values(n), found(n)
    double precision :: reals(n), reals_found(n)
    character(len=512) :: directory, name
    character(len=MPI_MAX_ERROR_STRING) :: text
    character(len=MPI_MAX_DATAREP_STRING) :: datarep
    integer(MPI_OFFSET_KIND) :: offset, size_now, position
    integer(MPI_ADDRESS_KIND) :: extent, lower
    logical :: flag, flags
    FILE_T :: file, other
    TYPE_T :: view, etype, filetype
    STATUS_T :: status STATUS_D
#if BINDING == 3
    STATUS_T :: statuses(pieces)
#else
    STATUS_T :: statuses(MPI_STATUS_SIZE, pieces)
#endif
    REQUEST_T :: request, requests(pieces)
    INFO_T :: info
    GROUP_T :: group
    HANDLER_T :: handler

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    next = mod(rank + 1, ranks)
    call get_command_argument(1, directory)
    ! Trailing blanks are no part of a name.
    write (name, '(a,a,i0)') trim(directory), '/fortran-', BINDING

    call MPI_Info_create(info, ierr)
    call MPI_Info_set(info, 'cb_nodes', '1', ierr)
    call MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE + MPI_MODE_RDWR, info, file, ierr)
    call good('open')
    call MPI_Info_free(info, ierr)
    if (failures > 0) call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
    call MPI_File_set_size(file, 0_MPI_OFFSET_KIND, ierr)
    call good('set_size')
    call MPI_File_get_amode(file, amode, ierr)
    call check(amode == MPI_MODE_CREATE + MPI_MODE_RDWR, 'amode')
    call MPI_File_get_info(file, info, ierr)
    call good('get_info')
    call MPI_Info_free(info, ierr)
    call MPI_File_get_group(file, group, ierr)
    call MPI_Group_size(group, count, ierr)
    call check(count == ranks, 'group')
    call MPI_Group_free(group, ierr)
    call MPI_File_get_atomicity(file, flag, ierr)
    call check(.not. flag, 'atomicity')

    ! Explicit offsets.
    values = [(rank * 10000 + i, i = 1, n)]
    offset = int(rank, MPI_OFFSET_KIND) * n * 4
    call MPI_File_write_at(file, offset, values, n, MPI_INTEGER, status, ierr)
    call good('write_at')
    call counted(n, 'write_at')
    call settle
    offset = int(next, MPI_OFFSET_KIND) * n * 4
    found = 0
    call MPI_File_read_at_all(file, offset, found, n, MPI_INTEGER, status, ierr)
    call good('read_at_all')
    call counted(n, 'read_at_all')
    call check(all(found == [(next * 10000 + i, i = 1, n)]), 'read_at_all: values')
    call MPI_File_get_size(file, size_now, ierr)
    call check(size_now == int(ranks, MPI_OFFSET_KIND) * n * 4, 'get_size')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)

    ! Individual pointers, ignored statuses.
    offset = int(rank, MPI_OFFSET_KIND) * n * 4
    call MPI_File_seek(file, offset, MPI_SEEK_SET, ierr)
    call MPI_File_write(file, values, n / 2, MPI_INTEGER, MPI_STATUS_IGNORE, ierr)
    call good('write')
    call MPI_File_write_all(file, values(n / 2 + 1), n / 2, MPI_INTEGER, MPI_STATUS_IGNORE, ierr)
    call good('write_all')
    call MPI_File_get_position(file, position, ierr)
    call check(position == offset + n * 4, 'get_position')
    call MPI_File_seek(file, -int(n * 4, MPI_OFFSET_KIND), MPI_SEEK_CUR, ierr)
    found = 0
    call MPI_File_read(file, found, n / 2, MPI_INTEGER, status, ierr)
    call counted(n / 2, 'read')
    call MPI_File_read_all(file, found(n / 2 + 1), n / 2, MPI_INTEGER, status, ierr)
    call check(all(found == values), 'read_all: values')

    call MPI_Barrier(MPI_COMM_WORLD, ierr)

    ! A view: ranks in turn, doubles.
    call MPI_Type_create_resized(MPI_DOUBLE_PRECISION, 0_MPI_ADDRESS_KIND, int(8 * ranks, MPI_ADDRESS_KIND), view, ierr)
    call MPI_Type_commit(view, ierr)
    offset = 8 * rank
    call MPI_File_set_view(file, offset, MPI_DOUBLE_PRECISION, view, 'native', MPI_INFO_NULL, ierr)
    call good('set_view')
    call MPI_File_get_view(file, offset, etype, filetype, datarep, ierr)
    call check(offset == 8 * rank .and. datarep == 'native', 'get_view')
    call MPI_Type_get_extent(filetype, lower, extent, ierr)
    call check(extent == 8 * ranks, 'get_view: filetype')
    call MPI_File_get_type_extent(file, MPI_DOUBLE_PRECISION, extent, ierr)
    call check(extent == 8, 'get_type_extent')
    call MPI_File_get_byte_offset(file, 3_MPI_OFFSET_KIND, offset, ierr)
    call check(offset == 8 * rank + 3 * 8 * ranks, 'get_byte_offset')
    reals = [(rank + i / 1024d0, i = 1, n)]
    call MPI_File_write_at_all(file, 0_MPI_OFFSET_KIND, reals, n, MPI_DOUBLE_PRECISION, status, ierr)
    call good('write_at_all in a view')
    call settle
    reals_found = 0
    call MPI_File_read_at(file, 0_MPI_OFFSET_KIND, reals_found, n, MPI_DOUBLE_PRECISION, status, ierr)
    call check(all(reals_found == reals), 'read_at in a view: values')
    call MPI_File_set_view(file, 0_MPI_OFFSET_KIND, MPI_DOUBLE_PRECISION, MPI_DOUBLE_PRECISION, 'native', MPI_INFO_NULL, ierr)
    call MPI_File_read_at(file, 0_MPI_OFFSET_KIND, reals_found, min(n, ranks), MPI_DOUBLE_PRECISION, status, ierr)
    call check(all(reals_found(1:min(n, ranks)) == [(i - 1 + 1 / 1024d0, i = 1, min(n, ranks))]), 'the first of each rank')
    call MPI_File_set_view(file, 0_MPI_OFFSET_KIND, MPI_INTEGER, MPI_INTEGER, 'native', MPI_INFO_NULL, ierr)
    call MPI_Type_free(view, ierr)
    call MPI_Barrier(MPI_COMM_WORLD, ierr)

    ! Nonblocking, each completion.
    do j = 1, 5
        values = [(j * 1000000 + rank * 10000 + i, i = 1, n)]
        do i = 1, pieces
            offset = int(rank, MPI_OFFSET_KIND) * n + (i - 1) * (n / pieces)
            if (mod(j, 2) == 0) then
                call MPI_File_iwrite_at(file, offset, values((i - 1) * (n / pieces) + 1), n / pieces, MPI_INTEGER, requests(i), ierr)
            else
                call MPI_File_iwrite_at_all(file, offset, values((i - 1) * (n / pieces) + 1), n / pieces, MPI_INTEGER, requests(i), ierr)
            end if
            call good('iwrite')
        end do
        select case (j)
        case (1)
            call MPI_Waitall(pieces, requests, statuses, ierr)
        case (2)
            do i = 1, pieces
                call MPI_Wait(requests(i), status, ierr)
                call counted(n / pieces, 'wait')
            end do
        case (3)
            flags = .false.
            do while (.not. flags)
                call MPI_Testall(pieces, requests, flags, statuses, ierr)
            end do
        case (4)
            do i = 1, pieces
                call MPI_Waitany(pieces, requests, count, status, ierr)
                call check(count >= first .and. count <= pieces, 'waitany: index')
                call counted(n / pieces, 'waitany')
            end do
        case (5)
            i = 0
            do while (i < pieces)
                call MPI_Waitsome(pieces, requests, done, indices, statuses, ierr)
                call check(done >= 1 .and. minval(indices(1:max(done, 1))) >= first .and. maxval(indices(1:max(done, 1))) <= pieces, 'waitsome')
                if (done < 1) exit
                i = i + done
            end do
        end select
        call good('completion')
        call settle
        found = 0
        offset = int(next, MPI_OFFSET_KIND) * n
        call MPI_File_iread_at(file, offset, found, n, MPI_INTEGER, request, ierr)
        flag = .false.
        do while (.not. flag)
            call MPI_Test(request, flag, status, ierr)
        end do
        call counted(n, 'iread_at')
        length = n / pieces * pieces
        call check(all(found(1:length) == [(j * 1000000 + next * 10000 + i, i = 1, length)]), 'iread_at: values')
        call MPI_Barrier(MPI_COMM_WORLD, ierr)
    end do

    ! Split collectives.
    offset = int(rank, MPI_OFFSET_KIND) * n
    call MPI_File_write_at_all_begin(file, offset, values, n, MPI_INTEGER, ierr)
    call good('write_at_all_begin')
    call MPI_File_write_at_all_end(file, values, status, ierr)
    call counted(n, 'write_at_all_end')
    found = 0
    call MPI_File_read_at_all_begin(file, offset, found, n, MPI_INTEGER, ierr)
    call MPI_File_read_at_all_end(file, found, status, ierr)
    call counted(n, 'read_at_all_end')
    call check(all(found == values), 'split: values')

    ! Shared pointers, in the order of ranks, and not.
    call MPI_File_seek_shared(file, 0_MPI_OFFSET_KIND, MPI_SEEK_SET, ierr)
    call MPI_File_write_ordered(file, values, 10 + rank, MPI_INTEGER, status, ierr)
    call counted(10 + rank, 'write_ordered')
    call MPI_File_get_position_shared(file, position, ierr)
    call check(position == 10 * ranks + ranks * (ranks - 1) / 2, 'get_position_shared')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call MPI_File_seek_shared(file, 0_MPI_OFFSET_KIND, MPI_SEEK_SET, ierr)
    found = 0
    call MPI_File_read_ordered(file, found, 10 + rank, MPI_INTEGER, status, ierr)
    call check(all(found(1:10 + rank) == values(1:10 + rank)), 'read_ordered: values')
    call MPI_File_write_shared(file, values, 5, MPI_INTEGER, status, ierr)
    call counted(5, 'write_shared')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call MPI_File_get_position_shared(file, position, ierr)
    call check(position == 15 * ranks + ranks * (ranks - 1) / 2, 'get_position_shared after write_shared')

    ! The end of the file, by counts.
    call MPI_File_get_size(file, size_now, ierr)
    call MPI_File_read_at(file, size_now / 4 - 7, found, n, MPI_INTEGER, status, ierr)
    call counted(7, 'read_at at the end')

    ! Errors: returned, as the default; then to a handler.
    call MPI_File_seek(file, -1_MPI_OFFSET_KIND, MPI_SEEK_SET, ierr)
    call check(ierr /= MPI_SUCCESS, 'seek below zero')
    call MPI_Error_class(ierr, class, j)
    call check(class /= MPI_SUCCESS, 'its class')
    call MPI_Error_string(ierr, text, length, j)
    call check(length > 0, 'its text')
    call MPI_File_create_errhandler(on_error, handler, ierr)
    call good('create_errhandler')
    call MPI_File_set_errhandler(file, handler, ierr)
    call good('set_errhandler')
    handled = 0
    call MPI_File_seek(file, -1_MPI_OFFSET_KIND, MPI_SEEK_SET, ierr)
    call check(handled == 1, 'handled by a subroutine')
    call MPI_File_set_errhandler(file, MPI_ERRORS_RETURN, ierr)
    call MPI_Errhandler_free(handler, ierr)
    call MPI_File_open(MPI_COMM_WORLD, trim(name)//'-none', MPI_MODE_RDONLY, MPI_INFO_NULL, other, ierr)
    call MPI_Error_class(ierr, class, j)
    call check(class == MPI_ERR_NO_SUCH_FILE, 'open of nothing')

    call MPI_File_sync(file, ierr)
    call good('sync')
    call MPI_File_preallocate(file, size_now + 1000, ierr)
    call good('preallocate')
    call MPI_File_close(file, ierr)
    call good('close')
    call check(file == MPI_FILE_NULL, 'close: handle')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    if (rank == 0) then
        call MPI_File_delete(name, MPI_INFO_NULL, ierr)
        call good('delete')
    end if
    call MPI_Allreduce(failures, count, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
    if (rank == 0 .and. count == 0) print '(a,i0,a,i0,a)', 'ok      fortran binding ', BINDING, ', ', ranks, ' ranks'
    if (rank == 0 .and. count /= 0) print '(a,i0,a,i0,a)', 'FAILED  fortran binding ', BINDING, ': ', count, ' checks'
    call MPI_Finalize(ierr)
    if (count /= 0) stop 1

contains

    subroutine check(condition, what)
        logical, intent(in) :: condition
        character(len=*), intent(in) :: what
        if (condition) return
        failures = failures + 1
        print '(a,i0,a,a)', 'fortran, rank ', rank, ': ', what
    end subroutine check

    subroutine good(what)
        character(len=*), intent(in) :: what
        integer :: kind, size_of, ignored
        character(len=MPI_MAX_ERROR_STRING) :: words
        if (ierr == MPI_SUCCESS) return
        call MPI_Error_class(ierr, kind, ignored)
        call MPI_Error_string(ierr, words, size_of, ignored)
        call check(.false., what//': '//words(1:size_of))
    end subroutine good

    subroutine counted(expected, what)
        integer, intent(in) :: expected
        character(len=*), intent(in) :: what
        integer :: elements, ignored
        call MPI_Get_elements(status, MPI_BYTE, elements, ignored)
        if (elements /= 4 * expected) print *, what, ': counted', elements, 'bytes, not', 4 * expected
        call check(elements == 4 * expected, what//': count')
    end subroutine counted

    subroutine settle
        call MPI_File_sync(file, ierr)
        call good('sync')
        call MPI_Barrier(MPI_COMM_WORLD, ierr)
        call MPI_File_sync(file, ierr)
    end subroutine settle

end program fortran
