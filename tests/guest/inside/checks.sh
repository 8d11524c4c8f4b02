# What systemd says of the units, how the cell is confined, and how the last shutdown went.

check_unit() {
    local pid status
    pid=$(property flashcell@db MainPID)
    status=/proc/$pid/status
    check "whose process" "$(stat -c %U /proc/$pid)" flashcell
    check "no new privileges" "$(awk '/^NoNewPrivs/ { print $2 }' $status)" 1
    check "system calls are filtered" "$(awk '/^Seccomp:/ { print $2 }' $status)" 2
    # CAP_SYS_RESOURCE alone.
    check "capabilities" "$(awk '/^Cap(Eff|Bnd)/ { print $2 }' $status | sort -u)" 0000000001000000
    check "locked memory" "$(awk '/^Max locked memory/ { print $4, $5 }' /proc/$pid/limits)" "unlimited unlimited"
    check "last to be ended" "$(cat /proc/$pid/oom_score_adj)" -900
    journalctl -u flashcell@db -o cat >log
    grep -q "allocations do not wait for I/O of this cell (PR_SET_IO_FLUSHER)" log || fail "PR_SET_IO_FLUSHER: $(cat log)"
    grep -q "memory is not swapped out" log || fail "memory is not locked: $(cat log)"
    grep -E 'WARN|ERROR' log >warnings && fail "the cell warns: $(cat warnings)"
    journalctl -k -o cat | grep -E 'type=1326|sig=31' && fail "a system call was refused"

    must systemd-analyze verify --man=no flashcell@db.service flashcell-attach@pgdata.service
    ! grep -i flashcell out || fail "systemd-analyze verify: $(cat out)"
    must systemd-analyze security flashcell@db.service --threshold=40 --no-pager
    say "systemd-analyze security: $(tail -n 1 out)"

    # The devices that the unit allows, and no others.
    may() {
        { printf '[Service]\nType=oneshot\nExecStart=head -c 1 %s\n' "$1"; grep -E '^Device(Policy|Allow)=' /usr/lib/systemd/system/flashcell@.service; } \
            >/run/systemd/system/may.service
        systemctl daemon-reload
        systemctl start may.service 2>/dev/null
    }
    may /dev/vdd || fail "a disk is not among the devices that the unit allows"
    ! may /dev/kmsg || fail "the unit allows /dev/kmsg"
    systemctl reset-failed may.service
    rm /run/systemd/system/may.service
}

# The first line of the journal in ./journal with these words.
at() {
    local line
    line=$(grep -n -m 1 -E "$1" journal) || fail "not in the journal of the boot: $1"
    echo "${line%%:*}"
}

in_order() { # PATTERN...
    local before=0 now pattern
    for pattern in "$@"; do
        now=$(at "$pattern") || exit
        [ "$now" -gt "$before" ] || fail "out of order: $pattern in line $now of the journal, what it follows in line $before"
        before=$now
    done
}

check_shutdown() {
    # Of the boot before, from where its script ended it.
    journalctl -b -1 -o short-monotonic --no-pager | sed -n '/guest: reboot$/,$p' >journal
    in_order "Stopped postgresql@$version-main" "Unmounted mnt-pgdata.mount" "Stopped flashcell-attach@pgdata" "Stopping flashcell@db" "stopped clean" "Stopped flashcell@db"
    in_order "Unmounted mnt-pgwal.mount" "Stopped flashcell-attach@pgwal" "Stopping flashcell@db"
    in_order "Stopped flashcell-attach@files" "Stopping flashcell@db"
    grep -E 'Failed|Timed out|timed out|SIGKILL|SIGABRT|I/O error|Dependency failed' journal >bad && fail "the shutdown before: $(cat bad)"
    # systemd 257 says so of what this host has left out: BPF, and D-Bus.
    journalctl -b -o short-monotonic --no-pager | grep -vE 'Failed to (open libbpf|connect to system scope bus)' >journal
    grep -E 'recovery complete|recovering journal|EXT4-fs error|Failed|last stop was not clean|was interrupted|automatic recovery' journal >bad &&
        fail "what this boot found: $(cat bad)"
    sed -n 'H; /starting PostgreSQL/h; ${x;p}' /var/log/postgresql/postgresql-$version-main.log >log
    grep -q "database system was shut down at" log || fail "PostgreSQL was not shut down: $(cat log)"
}

check_order() {
    in_order "Started flashcell@db" "Reached target remote-fs-pre.target" "Finished flashcell-attach@pgdata" "Mounted mnt-pgdata.mount" "Reached target remote-fs.target"
    in_order "Mounted mnt-pgwal.mount" "Starting postgresql@$version-main" "Started postgresql@$version-main"
}
