! Random histories of Fortran's ways to a file: what a program finds must not depend on the file system.
! histories SEED STEPS: prints what each step gave; eight files in the working directory, one after the other.
program histories
  use, intrinsic :: iso_fortran_env, only: int8, int64, iostat_end
  implicit none
  integer(int64) :: state
  integer :: steps, number
  character(len=20) :: word

  call get_command_argument(1, word)
  read (word, *) state
  call get_command_argument(2, word)
  read (word, *) steps
  do number = 1, 8
    select case (below(5))
    case (0); call sequential
    case (1); call direct
    case (2); call stream
    case (3); call formatted
    case (4); call two_units
    end select
    call whole
  end do

contains

  integer function below(limit)
    integer, intent(in) :: limit
    ! Products that stay within 63 bits.
    state = mod(state * 48271_int64 + 11_int64, 2147483647_int64)
    below = int(mod(state / 8, int(limit, int64)))
  end function

  ! A record's length in bytes: often small, at times over several stripes.
  integer function length()
    select case (below(6))
    case (0); length = 1 + below(8)
    case (1, 2); length = 1 + below(500)
    case (3, 4); length = 1 + below(9000)
    case default; length = 1 + below(200000)
    end select
  end function

  function record(bytes)
    integer, intent(in) :: bytes
    integer(int8) :: record(bytes)
    integer :: seed, place
    seed = below(1000)
    record = [(int(mod(seed + place * 7, 251) - 125, int8), place = 1, bytes)]
  end function

  integer(int64) function total(bytes)
    integer(int8), intent(in) :: bytes(:)
    integer :: place
    total = size(bytes)
    do place = 1, size(bytes)
      total = mod(total * 31 + bytes(place) + 128, 281474976710597_int64)
    end do
  end function

  ! Length, and what was read; the first two numbers say how it ended.
  subroutine tell(what, status, bytes)
    character(len=*), intent(in) :: what
    integer, intent(in) :: status
    integer(int8), intent(in) :: bytes(:)
    print *, what, status == 0, status == iostat_end, merge(total(bytes), 0_int64, status == 0)
  end subroutine

  subroutine tell_size(unit)
    integer, intent(in) :: unit
    integer(int64) :: bytes
    flush (unit)
    inquire (unit, size=bytes)
    print *, 'size', bytes
  end subroutine

  subroutine sequential
    integer :: unit, status, step, count
    integer(int8), allocatable :: bytes(:)
    open (newunit=unit, file='file', form='unformatted', access='sequential', status='replace', &
          action='readwrite')
    do step = 1, steps
      select case (below(9))
      case (0:3)
        count = length()
        write (unit, iostat=status) record(count)
        print *, 'sequential write', count, status
      case (4, 5)
        count = 1 + below(3)
        allocate (bytes(count))
        bytes = 0
        read (unit, iostat=status) bytes
        call tell('sequential read', status, bytes)
        deallocate (bytes)
        if (status == iostat_end) backspace (unit, iostat=status)
      case (6)
        backspace (unit, iostat=status)
        print *, 'backspace', status
      case (7)
        rewind (unit, iostat=status)
        print *, 'rewind', status
      case (8)
        if (below(3) > 0) cycle
        call tell_size(unit)
        close (unit)
        open (newunit=unit, file='file', form='unformatted', access='sequential', status='old', &
              position='append', action='readwrite')
        if (below(2) == 0) rewind (unit)
      end select
    end do
    close (unit)
  end subroutine

  subroutine direct
    integer :: unit, status, step, place
    integer(int8), allocatable :: bytes(:)
    place = merge(300000, 5000, below(8) == 0)
    place = 1 + below(place)
    allocate (bytes(place))
    open (newunit=unit, file='file', form='unformatted', access='direct', recl=size(bytes), &
          status='replace', action='readwrite')
    do step = 1, steps
      place = 1 + below(40)
      select case (below(5))
      case (0, 1)
        write (unit, rec=place, iostat=status) record(size(bytes))
        print *, 'direct write', place, status
      case (2, 3)
        bytes = 0
        read (unit, rec=place, iostat=status) bytes
        call tell('direct read', status, bytes)
      case (4)
        if (below(5) == 0) call tell_size(unit)
      end select
    end do
    close (unit)
  end subroutine

  subroutine stream
    integer :: unit, status, step, place, count
    integer(int8), allocatable :: bytes(:)
    open (newunit=unit, file='file', form='unformatted', access='stream', status='replace', &
          action='readwrite')
    do step = 1, steps
      count = length()
      allocate (bytes(count))
      bytes = 0
      place = 1 + below(400000)
      select case (below(8))
      case (0, 1)
        write (unit, iostat=status) record(size(bytes))
        inquire (unit, pos=place)
        print *, 'stream write', status, place
      case (2)
        write (unit, pos=place, iostat=status) record(size(bytes))
        print *, 'stream write at', place, status
      case (3, 4)
        read (unit, iostat=status) bytes
        call tell('stream read', status, bytes)
      case (5, 6)
        read (unit, pos=place, iostat=status) bytes
        call tell('stream read at', status, bytes)
      case (7)
        if (below(4) == 0) then
          call tell_size(unit)
        else if (below(4) == 0) then
          read (unit, pos=place, iostat=status) bytes(1)
          if (status == 0) endfile (unit)
        end if
      end select
      deallocate (bytes)
    end do
    close (unit)
  end subroutine

  subroutine formatted
    integer :: unit, status, step, place, count, values(5)
    character(len=4000) :: line
    namelist /group/ values, count
    open (newunit=unit, file='file', form='formatted', status='replace', action='readwrite')
    do step = 1, steps
      select case (below(10))
      case (0:2)
        count = below(400)
        write (unit, '(*(i0, 1x))', iostat=status) (below(100000), place = 1, count)
        print *, 'line', count, status
      case (3)
        values = below(9999)
        count = step
        write (unit, nml=group, iostat=status)
        print *, 'namelist', status
      case (4)
        count = below(300)
        write (unit, '(a)', advance='no', iostat=status) repeat('x', count)
        print *, 'part of a line', status
      case (5, 6)
        line = ''
        read (unit, '(a)', iostat=status) line
        print *, 'read', status == 0, len_trim(line), trim(line(1:40))
        if (status == iostat_end) backspace (unit, iostat=status)
      case (7)
        backspace (unit, iostat=status)
        print *, 'backspace', status
      case (8)
        rewind (unit)
        read (unit, *, iostat=status) place
        print *, 'first', status == 0, merge(place, 0, status == 0)
        if (status == iostat_end) backspace (unit, iostat=status)
      case (9)
        if (below(4) > 0) cycle
        endfile (unit, iostat=status)
        print *, 'endfile', status
        backspace (unit, iostat=status)
      end select
    end do
    close (unit)
  end subroutine

  ! One unit writes, another one reads what it has flushed.
  subroutine two_units
    integer :: writer, reader, step, count, bytes_there
    integer(int8), allocatable :: bytes(:)
    open (newunit=writer, file='file', form='unformatted', access='stream', status='replace', &
          action='write')
    do step = 1, steps
      count = length()
      bytes = record(count)
      write (writer) bytes
      if (below(3) > 0) cycle
      flush (writer)
      inquire (file='file', size=bytes_there)
      close (writer)
      open (newunit=reader, file='file', form='unformatted', access='stream', status='old', &
            action='read')
      read (reader, pos=bytes_there - size(bytes) + 1) bytes
      print *, 'behind the writer', bytes_there, total(bytes)
      close (reader)
      open (newunit=writer, file='file', form='unformatted', access='stream', status='old', &
            position='append', action='write')
    end do
    close (writer)
  end subroutine

  subroutine whole
    integer :: unit, bytes_there
    integer(int8), allocatable :: bytes(:)
    inquire (file='file', size=bytes_there)
    allocate (bytes(max(bytes_there, 0)))
    if (bytes_there > 0) then
      open (newunit=unit, file='file', form='unformatted', access='stream', status='old', action='read')
      read (unit) bytes
      close (unit)
    end if
    print *, 'whole', bytes_there, total(bytes)
  end subroutine

end program
