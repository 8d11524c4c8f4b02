# What every script of a guest begins with.
. /settings
export FLASHCELL_CELL=/tmp/cell

say() { echo "guest: $*"; }

# Ends the guest, with all that helps to see why.
fail() {
    say "FAILED: $*"
    for log in /tmp/cell.log /run/flashcell/attach/*/log; do
        echo "--- $log"
        tail -n 15 "$log"
    done
    echo "--- processes"
    ps -o pid,stat,args | grep -v '\['
    echo "--- kernel"
    dmesg | tail -n 60
    echo "guest: exit 1"
    poweroff -f
}

check() { # WHAT GOT WANTED
    [ "$2" = "$3" ] || fail "$1: $2, expected $3"
}

within() { # SECONDS COMMAND...: until it is true
    local until
    until=$(($(now) + $1 * 100))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$(now)" -lt "$until" ] || fail "not in time: $*"
        sleep 0.05
    done
}

# Hundredths of a second.
now() {
    local up
    read -r up _ </proc/uptime
    up=${up%.*}${up#*.}
    echo "${up#0}"
}

cell_start() {
    : >/tmp/cell.out
    flashcell serve "$FLASHCELL_CELL" >/tmp/cell.out 2>>/tmp/cell.log &
    cell=$!
    within 60 grep -q '^ready ' /tmp/cell.out
}

cell_kill() {
    kill -9 "$cell"
    wait "$cell" 2>/dev/null
}

# A key of the only attachment.
of_row() {
    flashcell attach --list --json | sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p"
}

is_up() { [ "$(of_row state)" = up ]; }

# What hangs is told from inside, with what the kernel knows of who waits.
(
    sleep "$SECONDS_MAX"
    echo w >/proc/sysrq-trigger
    fail "not done in $SECONDS_MAX s"
) &
