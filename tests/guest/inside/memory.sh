# A grid disk attached through $DRIVER, with cell, keeper, driver and two writers in one memory limit (cgroup): for $LOAD_SECONDS they write
# through the page cache more than it holds. What cell and driver need must never wait for pages that only they can write out.
. /lib.sh

# What the limit leaves beside what cell and driver have when they have come up, some 400 to 550 MiB, locked: for what they use later, and for
# what mkfs has discarded of the images, which counts again once it is written, 110 MiB.
MARGIN_MIB=${MARGIN_MIB:-150}
# Outside of the limit, but for what is discarded: the images are in this guest's memory.
flashcell init "$FLASHCELL_CELL" --disk 320M --flash 64M --griddisk data:240M:data:write-back --durable yes >/dev/null || fail init
mkdir /tmp/cgroup
# Version 1 waits for pages under way where version 2 does not: the harder of the two.
if mount -t cgroup -o memory none /tmp/cgroup 2>/dev/null; then
    version=1 limit=memory.limit_in_bytes usage=memory.usage_in_bytes
else
    mount -t cgroup2 none /tmp/cgroup || fail "no cgroups"
    echo +memory >/tmp/cgroup/cgroup.subtree_control || fail "no memory cgroup"
    version=2 limit=memory.max usage=memory.current
fi
mkdir /tmp/cgroup/all
echo $$ >/tmp/cgroup/all/cgroup.procs || fail "not in the cgroup"
# How often the limit was reached.
failures() {
    if [ $version = 1 ]; then cat /tmp/cgroup/all/memory.failcnt; else sed -n 's/^max //p' /tmp/cgroup/all/memory.events; fi
}

cell_start
grep -q "allocations do not wait" /tmp/cell.log || fail "PR_SET_IO_FLUSHER is not in force"
device=$(flashcell attach data /mnt --driver "$DRIVER" --mkfs ext4 2>/tmp/attach.err) || fail "attach: $(cat /tmp/attach.err)"
stat=/sys/block/${device#/dev/}/stat
used_mib=$(($(cat /tmp/cgroup/all/$usage) >> 20))
echo $((used_mib + MARGIN_MIB))M >/tmp/cgroup/all/$limit || fail "no limit"

: >/tmp/errors
writer() {
    while [ ! -e /tmp/stop ]; do
        dd if=/dev/zero of="/mnt/file-$1" bs=16k count=6400 conv=notrunc 2>/tmp/writer.err || { cat /tmp/writer.err >>/tmp/errors; break; }
    done
}
writer 1 & first=$!
writer 2 & second=$!

# Requests completed (reads, writes, discards, flushes), and those under way.
look() {
    # shellcheck disable=SC2046
    set -- $(cat "$stat")
    completed=$(($1 + $5 + ${12:-0} + ${16:-0})) under_way=$9
}
look
begun=$completed before=$completed
until=$(($(now) + LOAD_SECONDS * 100)) since=$(now) longest=0
while [ "$(now)" -lt $until ]; do
    sleep 0.1
    look
    at=$(now)
    if [ "$completed" -ne "$before" ] || [ "$under_way" -eq 0 ]; then
        before=$completed since=$at
    fi
    [ $((at - since)) -le $longest ] || longest=$((at - since))
    [ $longest -lt 500 ] || fail "$under_way requests are outstanding, and none was completed for $longest hundredths of a second"
done
: >/tmp/stop
wait "$first"
wait "$second"
[ ! -s /tmp/errors ] || fail "the writers: $(cat /tmp/errors)"
look
[ "$(failures)" -gt 0 ] || fail "the limit of memory was never reached: this shows nothing"
[ $((completed - begun)) -gt $((LOAD_SECONDS * 5)) ] || fail "$((completed - begun)) requests in $LOAD_SECONDS s"
check "drivers started" "$(of_row drivers_started)" 1
flashcell detach data 2>/tmp/detach.err || fail "detach: $(cat /tmp/detach.err)"
dmesg | grep -E 'Out of memory|oom-kill|I/O error' && fail "the kernel ended a process, or saw errors"
kill -TERM "$cell"
wait "$cell" || fail "the cell did not stop cleanly"
say "driver $DRIVER, cgroup version $version, $used_mib and $MARGIN_MIB MiB: $((completed - begun)) requests, the limit reached $(failures) times, at most $((longest / 100)).$(printf %02d $((longest % 100))) s without a completed request"
exit 0
