# A Debian host with a cell of the package: installed as docs/guide/install.md says, PostgreSQL on a grid disk that fstab mounts, and REBOOTS
# reboots, each with the database up, its rows there, and nothing left to recover. With LONG also: an upgrade under load, a downgrade over formats
# that have moved, needrestart, a disk that hangs, removal and purge. Runs anew at each boot; /root/test/boot says which it is.
cd /root/test || exit
. ./settings
cell=/var/lib/flashcell/db
data=/mnt/pgdata
version=$(ls /etc/postgresql)
base=/var/lib/postgresql/$version/main

# Through the kernel's log, a line at a time: nothing is written into it by others.
say() { echo "<5>guest: $*" >/dev/kmsg; }

tell() { # FILE or -: a few of its lines
    tail -n 40 "$@" | cut -c 1-220 | while IFS= read -r line; do say "    $line"; done
}

ended() {
    sync
    sleep 1
    poweroff -f
}

fail() {
    say "FAILED: $*"
    tell output
    systemctl --failed --no-legend | tell -
    systemctl list-jobs --no-legend | tell -
    journalctl -b -p notice --no-pager -o short-monotonic | grep -v ' kernel: ' | tell -
    journalctl -b -u 'flashcell@*' -n 40 --no-pager -o short-monotonic | tell -
    for log in /run/flashcell/attach/*/log; do
        say "--- $log"
        tell "$log"
    done
    say "exit 1"
    ended
}

check() { # WHAT GOT WANTED
    [ "$2" = "$3" ] || fail "$1: $2, expected $3"
}

must() { # COMMAND...: what it printed is in ./out
    "$@" >out 2>&1 || fail "$*: exit $?: $(tail -n 5 out | tr '\n' ' ')"
}

within() { # SECONDS COMMAND...: until it is true
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || fail "not in time: $*"
        sleep 0.2
    done
}

property() { # UNIT PROPERTY
    systemctl show -P "$2" "$1"
}

sql() {
    runuser -u postgres -- env -C / psql -X -At -v ON_ERROR_STOP=1 -c "$1" 2>>output
}

# In seconds since the kernel began.
up() {
    local seconds
    read -r seconds _ </proc/uptime
    echo "${seconds%.*}"
}

(
    sleep "$SECONDS_MAX"
    echo w >/proc/sysrq-trigger
    fail "not done in $SECONDS_MAX s"
) &
guard=$!

for part in install checks boots upgrade removal; do
    [ ! -e "$part.sh" ] || . "./$part.sh"
done

number=$(($(cat boot 2>/dev/null || echo 0) + 1))
echo $number >boot
systemctl is-system-running --wait >state
say "boot $number: $(cat state) after $(up) s"
[ "$(cat state)" = running ] || fail "units failed: $(systemctl --failed --plain --no-legend | tr '\n' ' ')"
if [ $number = 1 ]; then
    install_cell
    check_unit
else
    check_boot $number
fi
if [ $number -le "$REBOOTS" ]; then
    kill $guard
    say reboot
    systemctl reboot
    exit
fi
[ -z "${LONG:-}" ] || later
kill $guard
say "$number boots"
say "exit 0"
systemctl poweroff
