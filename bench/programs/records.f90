! Sequential unformatted records of 4 KiB, written and read back, on two files in turns: one that is
! plain and one that is buffered. Prints microseconds for each record on the one and the other;
! verifies every word.
program records
  use iso_fortran_env, only: int64, real64
  implicit none
  integer, parameter :: words = 512, count = 4096
  character(len=256) :: names(2)
  real(real64) :: written(2), read_back(2)
  integer :: i, turn

  do i = 1, 2
    call get_command_argument(i, names(i))
  end do
  do turn = 1, 2
    do i = 1, 2
      written(i) = write_all(trim(names(i)))
    end do
    do i = 1, 2
      read_back(i) = read_all(trim(names(i)))
    end do
  end do
  print '(a, 2(1x, f0.3))', 'Fortran records, write', written
  print '(a, 2(1x, f0.3))', 'Fortran records, read', read_back

contains

  function now_us() result(us)
    real(real64) :: us
    integer(int64) :: ticks, rate
    call system_clock(ticks, rate)
    us = real(ticks, real64) / real(rate, real64) * 1e6_real64
  end function now_us

  function write_all(name) result(us)
    character(len=*), intent(in) :: name
    real(real64) :: us, begun
    integer(int64) :: record(words)
    integer :: unit, number, word
    open (newunit=unit, file=name, form='unformatted', access='sequential', status='replace')
    us = 0
    do number = 1, count
      do word = 1, words
        record(word) = int(number, int64) * 1000003_int64 + word
      end do
      begun = now_us()
      write (unit) record
      us = us + now_us() - begun
    end do
    begun = now_us()
    close (unit)
    us = (us + now_us() - begun) / count
  end function write_all

  function read_all(name) result(us)
    character(len=*), intent(in) :: name
    real(real64) :: us, begun
    integer(int64) :: record(words)
    integer :: unit, number, word
    open (newunit=unit, file=name, form='unformatted', access='sequential', status='old')
    us = 0
    do number = 1, count
      begun = now_us()
      read (unit) record
      us = us + now_us() - begun
      do word = 1, words
        if (record(word) /= int(number, int64) * 1000003_int64 + word) error stop 'wrong word'
      end do
    end do
    close (unit)
    us = us / count
  end function read_all

end program records
