! Fortran's ways to a file: sequential unformatted with records of 1 byte to 64 MiB, direct access,
! stream, formatted; backspace, rewind, inquire, endfile. Ends with an error if anything reads back
! wrong. The largest record is the first argument, in MiB.
program sequential
  use, intrinsic :: iso_fortran_env, only: int8, int32, int64, iostat_end, iostat_eor
  implicit none
  integer(int64) :: largest
  character(len=20) :: word

  largest = 64
  if (command_argument_count() > 0) then
    call get_command_argument(1, word)
    read (word, *) largest
  end if
  call unformatted(largest * 1024 * 1024)
  call positions
  call direct
  call streams
  call formatted
  call edges
  print '(a)', 'ok'

contains

  subroutine need(good, what)
    logical, intent(in) :: good
    character(len=*), intent(in) :: what
    if (.not. good) then
      print '(2a)', 'FAILED: ', what
      error stop 1
    end if
  end subroutine

  ! The byte at a place in a record.
  pure elemental function content(record, place) result(byte)
    integer(int64), intent(in) :: record, place
    integer(int8) :: byte
    byte = int(mod(record * 31_int64 + place * 7_int64 + place / 4099_int64, 127_int64), int8)
  end function

  subroutine fill(bytes, record)
    integer(int8), intent(out) :: bytes(:)
    integer(int64), intent(in) :: record
    integer(int64) :: i
    do i = 1, size(bytes, kind=int64)
      bytes(i) = content(record, i)
    end do
  end subroutine

  function as_filled(bytes, record) result(same)
    integer(int8), intent(in) :: bytes(:)
    integer(int64), intent(in) :: record
    logical :: same
    integer(int64) :: i
    same = .true.
    do i = 1, size(bytes, kind=int64)
      if (bytes(i) /= content(record, i)) then
        print '(a,i0,a,i0)', 'record ', record, ' differs at byte ', i
        same = .false.
        return
      end if
    end do
  end function

  subroutine unformatted(bytes_max)
    integer(int64), intent(in) :: bytes_max
    integer(int64), parameter :: sizes(*) = [integer(int64) :: 1, 2, 3, 7, 8, 511, 512, 513, 1000, 4095, 4096, &
        8191, 8192, 8193, 65535, 65537, 131071, 131072, 131073, 1048575, 1048576, 1048577, 5000011, 16777216, 67108864]
    integer(int8), allocatable :: bytes(:)
    integer(int64) :: record, length
    integer :: unit, status, pass
    logical :: exists

    open (newunit=unit, file='sequential', form='unformatted', access='sequential', status='new', action='readwrite')
    do record = 1, size(sizes)
      if (sizes(record) > bytes_max) exit
      allocate (bytes(sizes(record)))
      call fill(bytes, record)
      write (unit) bytes
      ! And a small one between them.
      write (unit) record
      deallocate (bytes)
    end do
    endfile (unit)
    do pass = 1, 2
      ! In one go, then after opening anew.
      if (pass == 1) then
        rewind (unit)
      else
        close (unit)
        open (newunit=unit, file='sequential', form='unformatted', status='old', action='read')
      end if
      do record = 1, size(sizes)
        if (sizes(record) > bytes_max) exit
        allocate (bytes(sizes(record)))
        read (unit) bytes
        call need(as_filled(bytes, record), 'a sequential record')
        read (unit) length
        call need(length == record, 'a small record')
        deallocate (bytes)
      end do
      read (unit, iostat=status) length
      call need(status == iostat_end, 'end of file')
    end do
    ! Backwards.
    backspace (unit)
    do record = record - 1, 1, -1
      backspace (unit)
      read (unit) length
      call need(length == record, 'a small record, backwards')
      backspace (unit)
      backspace (unit)
      if (sizes(record) <= 70000) then
        allocate (bytes(sizes(record)))
        read (unit) bytes
        call need(as_filled(bytes, record), 'a record, backwards')
        deallocate (bytes)
        backspace (unit)
      end if
    end do
    ! A part of a record is enough to read; the rest is passed over.
    rewind (unit)
    do record = 1, 10
      allocate (bytes((sizes(record) + 1) / 2))
      read (unit) bytes
      call need(as_filled(bytes, record), 'part of a record')
      read (unit)
      deallocate (bytes)
    end do
    close (unit)
    inquire (file='sequential', exist=exists, size=length)
    call need(exists, 'inquire by name')
    print '(a,i0)', 'sequential: bytes ', length
  end subroutine

  subroutine positions
    integer :: unit, i, value, status, total
    character(len=20) :: position
    logical :: opened
    integer(int64) :: length

    open (newunit=unit, file='positions', form='unformatted')
    do i = 1, 3000
      write (unit) (i, value=1, mod(i, 50) + 1)
    end do
    ! Write behind what was read: all that follows goes.
    rewind (unit)
    do i = 1, 1000
      read (unit) value
      call need(value == i, 'record before the cut')
    end do
    write (unit) -1
    rewind (unit)
    total = 0
    do
      read (unit, iostat=status) value
      if (status == iostat_end) exit
      call need(status == 0, 'read to the end')
      total = total + 1
    end do
    call need(total == 1001 .and. value == -1, 'records after the cut')
    close (unit)
    open (newunit=unit, file='positions', form='unformatted', position='append')
    inquire (unit=unit, position=position, opened=opened)
    call need(opened .and. position == 'APPEND', 'position')
    write (unit) -2
    flush (unit)
    inquire (file='positions', size=length)
    backspace (unit)
    backspace (unit)
    read (unit) value
    call need(value == -1, 'record before the appended one')
    read (unit) value
    call need(value == -2, 'the appended one')
    close (unit, status='keep')
    print '(a,i0)', 'positions: bytes ', length
    open (newunit=unit, file='scratch', form='unformatted')
    write (unit) 1
    close (unit, status='delete')
    inquire (file='scratch', exist=opened)
    call need(.not. opened, 'deleted')
    open (newunit=unit, status='scratch', form='unformatted')
    write (unit) [(i, i=1, 100000)]
    rewind (unit)
    read (unit) value
    call need(value == 1, 'scratch')
    close (unit)
  end subroutine

  subroutine direct
    integer, parameter :: lengths(*) = [1, 7, 512, 1000, 4096, 65537, 1048576 + 3]
    integer(int8), allocatable :: bytes(:)
    integer :: unit, i, length, next, status, count
    integer(int64) :: record
    character(len=30) :: name

    do i = 1, size(lengths)
      length = lengths(i)
      count = merge(300, 6, length < 10000)
      write (name, '(a,i0)') 'direct.', length
      allocate (bytes(length))
      open (newunit=unit, file=name, form='unformatted', access='direct', recl=length, status='replace')
      ! Every third one, then from the end.
      do record = 1, count, 3
        call fill(bytes, record)
        write (unit, rec=record) bytes
      end do
      do record = count, 1, -1
        call fill(bytes, record)
        if (mod(record, 3_int64) /= 1) write (unit, rec=record) bytes
        read (unit, rec=record) bytes
        call need(as_filled(bytes, record), 'a direct record just written')
      end do
      inquire (unit=unit, nextrec=next)
      call need(next == 2, 'nextrec')
      do record = 1, count
        read (unit, rec=mod(record * 7, int(count + 1, int64)) + merge(1, 0, mod(record * 7, int(count + 1, int64)) == 0)) bytes
      end do
      read (unit, rec=count + 10, iostat=status) bytes
      call need(status /= 0, 'a record behind the last one')
      close (unit)
      open (newunit=unit, file=name, form='unformatted', access='direct', recl=length, status='old', action='read')
      do record = 1, count
        read (unit, rec=record) bytes
        call need(as_filled(bytes, record), 'a direct record')
      end do
      close (unit)
      deallocate (bytes)
    end do
  end subroutine

  subroutine streams
    integer :: unit, i, value
    integer(int64) :: place, length
    character(len=11) :: text

    open (newunit=unit, file='stream', form='unformatted', access='stream', status='replace')
    do i = 1, 100000
      write (unit) i
    end do
    inquire (unit=unit, pos=place, size=length)
    call need(place == 400001, 'pos of a stream')
    do i = 1, 99999, 777
      read (unit, pos=4 * i - 3) value
      call need(value == i, 'a stream read')
      write (unit, pos=4 * i + 1) -value
    end do
    write (unit, pos=1000000) 'hello', 'stream'
    read (unit, pos=1000000) text
    call need(text == 'hellostream', 'text in a stream')
    read (unit, pos=999996) value
    call need(value == 0, 'hole')
    read (unit, pos=4 * 778 + 1) value
    call need(value == -778, 'overwritten')
    close (unit)
    open (newunit=unit, file='stream.text', form='formatted', access='stream', status='replace')
    write (unit, '(a)') 'a line', 'another'
    inquire (unit=unit, pos=place)
    write (unit, '(i0)') 42
    read (unit, '(i2)', pos=place) value
    call need(value == 42, 'formatted stream')
    close (unit)
    inquire (file='stream', size=length)
    print '(a,i0)', 'stream: bytes ', length
  end subroutine

  subroutine formatted
    integer :: unit, i, status, length
    real(kind=kind(1d0)) :: x, y
    character(len=200) :: line
    character(len=:), allocatable :: long

    open (newunit=unit, file='formatted', status='replace')
    do i = 1, 20000
      write (unit, '(i8,1x,es24.16,1x,a)') i, sqrt(real(i, kind(x))), repeat('x', mod(i, 60))
    end do
    rewind (unit)
    do i = 1, 20000
      read (unit, *) length, x
      call need(length == i, 'a formatted record')
      y = sqrt(real(i, kind(x)))
      call need(abs(x - y) <= 1d-14 * y, 'a formatted number')
    end do
    read (unit, '(a)', iostat=status) line
    call need(status == iostat_end, 'end of formatted')
    backspace (unit)
    backspace (unit)
    read (unit, '(i8)', advance='no') length
    call need(length == 20000, 'backspace in formatted')
    read (unit, '(a)', advance='no', iostat=status, size=length) line
    call need(status == iostat_eor .and. length == 1 + 24 + 1 + mod(20000, 60), 'end of record')
    do i = 1, 5000
      backspace (unit)
    end do
    read (unit, '(i8)') length
    call need(length == 15001 .or. length == 15002, 'backspace over many')
    endfile (unit)
    close (unit)
    inquire (file='formatted', size=length)
    print '(a,i0)', 'formatted: bytes ', length
    allocate (character(len=300000) :: long)
    long(:) = repeat('0123456789', 30000)
    open (newunit=unit, file='long', status='replace', recl=400000)
    write (unit, '(a)') long, 'short', long
    rewind (unit)
    long(:) = ' '
    read (unit, '(a)') long
    call need(long(299991:) == '0123456789', 'a long record')
    read (unit, '(a)') line
    call need(line == 'short', 'behind a long record')
    close (unit)
    open (newunit=unit, file='list', status='replace', form='formatted', access='direct', recl=37)
    do i = 50, 1, -1
      write (unit, '(a,i0)', rec=i) 'record ', i
    end do
    read (unit, '(a)', rec=33) line
    call need(line(:37) == 'record 33', 'formatted direct')
    close (unit)
  end subroutine

  subroutine edges
    integer :: unit, other, status
    integer, asynchronous :: numbers(3)
    integer(int64) :: length
    character(len=40) :: message
    logical :: exists

    inquire (file='nothing', exist=exists, size=length)
    call need(.not. exists .and. length == -1, 'inquire of nothing')
    open (newunit=unit, file='nothing', status='old', iostat=status, iomsg=message)
    call need(status /= 0, 'open of nothing')
    open (newunit=unit, file='formatted', status='new', iostat=status)
    call need(status /= 0, 'open anew of what is there')
    open (newunit=unit, file='empty', form='unformatted', status='replace')
    write (unit)
    rewind (unit)
    read (unit, iostat=status)
    call need(status == 0, 'an empty record')
    read (unit, iostat=status)
    call need(status == iostat_end, 'behind an empty record')
    close (unit)
    open (newunit=unit, file='asynchronous', form='unformatted', asynchronous='yes', status='replace')
    numbers = [1, 2, 3]
    write (unit, asynchronous='yes') numbers
    wait (unit)
    close (unit)
    open (newunit=unit, file='asynchronous', form='unformatted', action='read', asynchronous='yes')
    numbers = 0
    read (unit, asynchronous='yes') numbers
    wait (unit)
    call need(all(numbers == [1, 2, 3]), 'asynchronous')
    close (unit)
    call execute_command_line('cp formatted formatted.copy && cmp formatted formatted.copy', exitstat=status)
    call need(status == 0, 'a command')
    open (newunit=other, file='formatted.copy', status='old', position='append')
    write (other, '(a)') 'more'
    flush (other)
    call execute_command_line('tail -n 1 formatted.copy | grep -qx more', exitstat=status)
    call need(status == 0, 'flushed')
    close (other)
  end subroutine
end program
