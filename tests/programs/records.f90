! One of several processes that write their own records of one shared file, in turns that are held
! apart by barriers made of files. In every round each writes its records in an order of its own and
! reads them back, while its neighbours write; after a barrier each reads the records of all.
!
!   records FILE RANK RANKS LENGTH COUNT DEAL ORDER ROUNDS SYNC
!
! DEAL says whose a record is: cyclic, block or random; ORDER how one goes through them: up, down,
! random. The length of a record is in bytes, the count is that of all records. With SYNC `keep` the
! unit stays open from the first barrier on (the runtime looks up the file's size only when it opens it),
! and is flushed; with `reopen` it is closed at each barrier; with `turns` there
! is a barrier after every record.
program records
  use, intrinsic :: iso_fortran_env, only: int8, int64
  implicit none
  character(len=200) :: path, deal, order, sync
  integer :: rank, ranks, length, count, rounds, round, unit, index, barriers
  integer, allocatable :: mine(:), owner(:)
  integer(int8), allocatable :: bytes(:)

  interface
    function usleep(us) bind(c, name='usleep') result(status)
      use, intrinsic :: iso_c_binding, only: c_int
      integer(c_int), value :: us
      integer(c_int) :: status
    end function
  end interface

  call get_command_argument(1, path)
  rank = number(2)
  ranks = number(3)
  length = number(4)
  count = number(5)
  call get_command_argument(6, deal)
  call get_command_argument(7, order)
  rounds = number(8)
  call get_command_argument(9, sync)
  barriers = 0

  call deal_out
  allocate (bytes(length))
  call put_open
  do round = 1, rounds
    call shuffle(round)
    ! One begins late, so that what the others read ahead now and again grows old.
    if (ranks > 1 .and. rank == mod(round + 1, ranks)) index = usleep(50000)
    do index = 1, size(mine)
      call fill(mine(index), round)
      write (unit, rec=mine(index)) bytes
      if (sync == 'turns') call show(index)
      ! Now and then at once, then all again from the end: what the neighbours do must not show.
      if (mod(index + rank, 5) == 0) call check(mine(index), round)
    end do
    do index = size(mine), 1, -1
      call check(mine(index), round)
    end do
    call put_closed
    call barrier
    call put_open
    do index = 1, count
      call check(mod(index * 7 + rank * 13, count) + 1, round)
    end do
    call put_closed
    call barrier
    call put_open
  end do
  close (unit)

contains

  integer function number(position)
    integer, intent(in) :: position
    character(len=20) :: word
    call get_command_argument(position, word)
    read (word, *) number
  end function

  subroutine put_open
    if (sync == 'keep' .and. barriers > 1) return
    open (newunit=unit, file=path, access='direct', form='unformatted', recl=length, action='readwrite')
  end subroutine

  subroutine put_closed
    if (sync == 'keep' .and. barriers > 0) then
      flush (unit)
    else
      close (unit)
    end if
  end subroutine

  ! A pseudo-random number below a limit, the same in all processes.
  integer function chance(seed, below)
    integer, intent(in) :: seed, below
    integer(int64) :: x
    x = mod(int(seed, int64) * 2654435761_int64 + 12345_int64, 4294967296_int64)
    x = ieor(x, x / 65536)
    x = mod(x * 40503_int64 + 977_int64, 4294967296_int64)
    chance = int(mod(x / 256, int(below, int64)))
  end function

  subroutine deal_out
    integer :: record
    allocate (owner(count))
    do record = 1, count
      select case (deal)
      case ('cyclic')
        owner(record) = mod(record - 1, ranks)
      case ('block')
        owner(record) = (record - 1) * ranks / count
      case default
        owner(record) = chance(record, ranks)
      end select
    end do
    mine = pack([(record, record=1, count)], owner == rank)
  end subroutine

  subroutine shuffle(seed)
    integer, intent(in) :: seed
    integer :: i, other, kept
    select case (order)
    case ('up')
      return
    case ('down')
      if (seed == 1) mine = mine(size(mine):1:-1)
    case default
      do i = size(mine), 2, -1
        other = chance(seed * 1000003 + rank * 7919 + i, i) + 1
        kept = mine(i)
        mine(i) = mine(other)
        mine(other) = kept
      end do
    end select
  end subroutine

  pure elemental function content(record, which, place) result(byte)
    integer, intent(in) :: record, which, place
    integer(int8) :: byte
    byte = int(mod(record * 31 + which * 17 + place * 7, 127), int8)
  end function

  subroutine fill(record, which)
    integer, intent(in) :: record, which
    integer :: i
    do i = 1, length
      bytes(i) = content(record, which, i)
    end do
  end subroutine

  subroutine check(record, which)
    integer, intent(in) :: record, which
    integer :: i, status
    character(len=200) :: message
    read (unit, rec=record, iostat=status, iomsg=message) bytes
    if (status /= 0) then
      print '(4(a,i0),2a)', 'FAILED: rank ', rank, ' round ', which, ' record ', record, ' of rank ', owner(record), ': ', &
          trim(message)
      error stop 1
    end if
    do i = 1, length
      if (bytes(i) /= content(record, which, i)) then
        print '(7(a,i0))', 'FAILED: rank ', rank, ' round ', which, ' record ', record, ' of rank ', owner(record), &
            ' byte ', i, ': ', bytes(i), ' in place of ', content(record, which, i)
        error stop 1
      end if
    end do
  end subroutine

  ! After each record of every process: all see all of them. Records are dealt cyclically here, and
  ! written upwards.
  subroutine show(turn)
    integer, intent(in) :: turn
    integer :: record
    call put_closed
    call barrier
    call put_open
    do record = min(count, turn * ranks), 1, -1
      call check(record, round)
    end do
  end subroutine

  ! All come here before any goes on. A file of each says how far it is.
  subroutine barrier
    integer :: other, status, tries, file
    character(len=250) :: name
    logical :: there
    barriers = barriers + 1
    write (name, '(2a,i0,a,i0)') trim(path), '.at.', barriers, '.', rank
    open (newunit=file, file=name, status='new')
    close (file)
    do other = 0, ranks - 1
      write (name, '(2a,i0,a,i0)') trim(path), '.at.', barriers, '.', other
      do tries = 1, 60000
        inquire (file=name, exist=there)
        if (there) exit
        status = usleep(500)
      end do
      if (.not. there) then
        print '(a,i0)', 'FAILED: no sign of rank ', other
        error stop 2
      end if
    end do
  end subroutine
end program
