! Fortran's files in a pool without a mount: sequential, direct and stream access, formatted and not.
program records
    implicit none
    character(len=4096) :: directory
    integer, parameter :: count = 2000
    integer :: unit, index, found(500), expected(500), size, status, wrong
    character(len=40) :: line
    logical :: exists

    wrong = 0
    call get_command_argument(1, directory)

    open(newunit=unit, file=trim(directory)//'/sequential', form='unformatted', action='readwrite')
    do index = 1, count
        expected = index
        write(unit) expected(1:mod(index, 500) + 1)
    end do
    rewind(unit)
    do index = 1, count
        found = 0
        read(unit) found(1:mod(index, 500) + 1)
        if (any(found(1:mod(index, 500) + 1) /= index)) wrong = wrong + 1
    end do
    do index = 1, 3
        backspace(unit)
    end do
    read(unit) found(1)
    if (found(1) /= count - 2) wrong = wrong + 1
    close(unit)

    open(newunit=unit, file=trim(directory)//'/direct', form='unformatted', access='direct', recl=2000)
    do index = count, 1, -1
        expected = index
        write(unit, rec=index) expected
    end do
    do index = 1, count
        read(unit, rec=mod(index * 7, count) + 1) found
        if (any(found /= mod(index * 7, count) + 1)) wrong = wrong + 1
    end do
    close(unit)
    inquire(file=trim(directory)//'/direct', size=size, exist=exists)
    if (size /= count * 2000 .or. .not. exists) wrong = wrong + 1

    open(newunit=unit, file=trim(directory)//'/formatted')
    do index = 1, count
        write(unit, '(a,i8)') 'record', index
    end do
    close(unit)
    open(newunit=unit, file=trim(directory)//'/formatted', position='append')
    write(unit, '(a)') 'last'
    close(unit)
    open(newunit=unit, file=trim(directory)//'/formatted', status='old', action='read')
    index = 0
    do
        read(unit, '(a)', iostat=status) line
        if (status /= 0) exit
        index = index + 1
    end do
    if (index /= count + 1 .or. line /= 'last') wrong = wrong + 1
    close(unit)

    open(newunit=unit, file=trim(directory)//'/stream', form='unformatted', access='stream')
    write(unit) expected, 1.5d0
    write(unit, pos=5) 7
    read(unit, pos=5) found(1:2)
    if (found(1) /= 7 .or. found(2) /= 1) wrong = wrong + 1
    close(unit, status='delete')
    inquire(file=trim(directory)//'/stream', exist=exists)
    if (exists) wrong = wrong + 1
    print '(a,i0)', 'wrong: ', wrong
    if (wrong /= 0) stop 1
end program records
