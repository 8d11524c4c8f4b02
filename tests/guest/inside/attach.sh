# A grid disk attached through $DRIVER: what the device says of itself, a file system on it under load while cell ($KILLS times) and driver
# are killed, growth, detach, a check of the file system and of every record whose fsync came back, and what is left when all are killed.
. /lib.sh

SECTOR=4096
flashcell init "$FLASHCELL_CELL" --disk 128M --flash 32M --griddisk data:48M:data:write-back --durable yes >/dev/null || fail init
cell_start
device=$(flashcell attach data --driver "$DRIVER" --fs 2>/tmp/attach.err) || fail "attach: $(cat /tmp/attach.err)"
name=${device#/dev/}
queue=/sys/block/$name/queue
check list "$(of_row driver) $(of_row state)" "$DRIVER up"
check size "$(cat "/sys/block/$name/size")" $((48 * 2048))
check sector "$(cat "$queue/logical_block_size") $(cat "$queue/physical_block_size")" "$SECTOR $SECTOR"
check cache "$(cat "$queue/write_cache")" "write back"
check link "$(readlink -f /dev/flashcell/cell/data)" "$device"
# A ublk device grows while it is used from Linux 6.16 on, and is the best there is from then on.
best=ublk grows_online=yes
case $(uname -r) in [1-5].* | 6.[0-9].* | 6.1[0-5].*) best=nbd ;; esac
if [ "$DRIVER $best" = "ublk nbd" ]; then
    grows_online=no
    grep -q "does not grow while it is attached" /tmp/attach.err || fail "nobody told that it does not grow: $(cat /tmp/attach.err)"
fi
if [ "$DRIVER" != fuse ]; then
    case $device in /dev/nbd* | /dev/ublkb*) ;; *) fail "driver $DRIVER gave $device" ;; esac
    check FUA "$(cat "$queue/fua")" 1
    [ "$(cat "$queue/discard_max_bytes")" -gt 0 ] || fail "no discard"
    [ "$(cat "$queue/write_zeroes_max_bytes")" -gt 0 ] || fail "no write-zeroes"
    check "longest request" "$(cat "$queue/max_sectors_kb")" 1024
fi
check "attached again" "$(flashcell attach data --fs 2>/dev/null)" "$device"

# Zeroes and discards go through, and nothing beside them.
tr '\0' x </dev/zero | dd of="$device" bs=1M count=2 seek=8 iflag=fullblock conv=fsync 2>/dev/null || fail "write to $device"
/sbin/blkdiscard -z -o $((8 << 20)) -l 65536 "$device" || fail write-zeroes
/sbin/blkdiscard -o $(((8 << 20) + 131072)) -l 65536 "$device" || fail discard
echo 1 >/proc/sys/vm/drop_caches
piece() { dd if="$device" bs=64k skip=$((128 + $1)) count=1 2>/dev/null | tr -d "$2" | wc -c; }
check "zeroed, left, discarded, left" "$(piece 0 '\0') $(piece 1 x) $(piece 2 '\0') $(piece 3 x)" "0 0 0 0"
say "device: $device"

flashcell attach data /mnt --driver "$DRIVER" --fs --mkfs ext4 2>/tmp/attach.err >&2 || fail "mount: $(cat /tmp/attach.err)"

# One writer of records, each made durable before it counts; one of larger files, compared with what they were made of.
records() {
    local n=0 began took longest=0
    while [ ! -e /tmp/stop ]; do
        n=$((n + 1))
        began=$(now)
        printf '%511d\n' $n | dd of=/mnt/records bs=512 seek=$((n - 1)) conv=notrunc,fsync 2>/tmp/records.err ||
            { cat /tmp/records.err >>/tmp/errors; break; }
        echo $n >/tmp/acknowledged.new
        mv /tmp/acknowledged.new /tmp/acknowledged
        took=$(($(now) - began))
        if [ $took -gt $longest ]; then
            longest=$took
            echo $longest >/tmp/longest
        fi
    done
}
files() {
    local n=0
    while [ ! -e /tmp/stop ]; do
        n=$((n + 1))
        dd if=/tmp/random of=/mnt/file-$((n % 4)) bs=64k conv=fsync 2>/tmp/files.err || { cat /tmp/files.err >>/tmp/errors; break; }
        cmp -s /tmp/random /mnt/file-$((n % 4)) || echo "file $n differs" >>/tmp/errors
    done
}
grows() { [ "$(cat "/sys/block/$name/size")" = "$1" ]; }
moves_on() { [ "$(cat /tmp/acknowledged)" -gt $(($1 + 3)) ]; }

dd if=/dev/urandom of=/tmp/random bs=64k count=24 2>/dev/null
: >/tmp/errors
echo 0 >/tmp/acknowledged
records & records=$!
files & files=$!
within 30 moves_on 1
cells=0 drivers=0
while [ $cells -lt "$KILLS" ]; do
    sleep 0.7
    cell_kill
    cells=$((cells + 1))
    cell_start
    within 60 is_up
    say "killed the cell $cells times, the driver $drivers times, $(cat /tmp/acknowledged) records"
    if [ $((cells % 3)) -ne 0 ]; then
        # The driver alone: what was under way is sent again. (With the cell at one moment, what was not flushed would be nowhere.)
        kill -9 "$(of_row driver_pid)"
        drivers=$((drivers + 1))
    fi
    before=$(cat /tmp/acknowledged)
    within 60 moves_on "$before"
    [ ! -s /tmp/errors ] || fail "the load: $(cat /tmp/errors)"
done
check "drivers started" "$(of_row drivers_started)" $((drivers + 1))

# Growth, under the load.
flashcell cellcli -e "alter griddisk data size=64M" >/dev/null || fail grow
larger() { [ "$(df -k /mnt | tail -n 1 | awk '{print $2}')" -gt 50000 ]; }
if [ $grows_online = yes ]; then
    within 30 grows $((64 * 2048))
    within 30 larger
else
    # Told where who looks for the reason looks; the device is as it was.
    within 30 grep -q "does not grow while it is attached" /run/flashcell/attach/*/log
    check "size of what does not grow" "$(cat "/sys/block/$name/size")" $((48 * 2048))
fi
before=$(cat /tmp/acknowledged)
within 30 moves_on "$before"

: >/tmp/stop
wait "$records"
wait "$files"
[ ! -s /tmp/errors ] || fail "the load: $(cat /tmp/errors)"
acknowledged=$(cat /tmp/acknowledged)
flashcell detach data 2>/tmp/detach.err || fail "detach: $(cat /tmp/detach.err)"
check "list after detach" "$(flashcell attach --list --json)" "[]"
[ ! -e /dev/flashcell/cell/data ] || fail "the link is still there"
dmesg | grep -E 'I/O error|EXT4-fs error|Aborting journal' && fail "the kernel saw errors"

if [ $grows_online = no ]; then
    # As large as the grid disk from here on.
    device=$(flashcell attach data /mnt --driver "$DRIVER" --fs 2>/tmp/attach.err) || fail "attach what has grown: $(cat /tmp/attach.err)"
    check "size after growth" "$(cat "/sys/block/${device#/dev/}/size")" $((64 * 2048))
    flashcell detach data 2>/dev/null || fail "detach what has grown"
fi

# Attached anew, for reading alone: clean, and every record is there.
device=$(flashcell attach data --driver "$DRIVER" --readonly 2>/tmp/attach.err) || fail "attach: $(cat /tmp/attach.err)"
check read-only "$(cat "/sys/block/${device#/dev/}/ro")" 1
dd if=/dev/zero of="$device" bs=4k count=1 conv=fsync 2>/dev/null && fail "a read-only device was written to"
/sbin/e2fsck -fn "$device" >/tmp/fsck 2>&1 || fail "fsck: $(cat /tmp/fsck)"
mount -o ro -t ext4 "$device" /mnt || fail "mount"
found=$(head -c $((acknowledged * 512)) /mnt/records | awk '{ if ($1 != NR) { print "record", NR, "is", $1; exit } n++ } END { print n }')
check records "$found" "$acknowledged"
umount /mnt
flashcell detach data 2>/dev/null || fail "detach of the read-only one"

# Keeper and driver are both gone: what is asked then fails, and detach cleans up. What was under way fails too, at the latest then.
device=$(flashcell attach data /mnt --driver "$DRIVER" 2>/dev/null) || fail "attach again"
kill -9 "$(of_row keeper_pid)" "$(of_row driver_pid)"
fails() { # FILE BLOCK: put into FILE how long it took
    local began
    began=$(now)
    dd if="$device" of=/dev/null bs=4k count=1 skip="$2" iflag=direct 2>/dev/null && echo "a read without a driver succeeded" >>/tmp/errors
    echo $(($(now) - began)) >"$1"
}
fails /tmp/under-way 5000 & under_way=$!
sleep 1
fails /tmp/later 6000 & later=$!
# The kernel keeps a ublk device for whoever serves it next: what is asked waits until it is detached.
if [ "$DRIVER" != ublk ]; then
    wait "$later"
    [ "$(cat /tmp/later)" -lt 3000 ] || fail "a read without keeper and driver failed after $(cat /tmp/later) hundredths of a second"
fi
flashcell detach data 2>/tmp/detach.err || fail "detach of what is dead: $(cat /tmp/detach.err)"
wait "$under_way"
wait "$later"
[ ! -s /tmp/errors ] || fail "$(cat /tmp/errors)"
check "list at the end" "$(flashcell attach --list --json)" "[]"
# The cell is as it was: it can be had again.
device=$(flashcell attach data /mnt 2>/tmp/attach.err) || fail "attach at the end: $(cat /tmp/attach.err)"
check "driver when nobody says which" "$(of_row driver)" "$best"
check "records at the end" "$(head -c $((acknowledged * 512)) /mnt/records | awk '$1 == NR' | wc -l)" "$acknowledged"
flashcell detach data 2>/dev/null || fail "detach at the end"

# Without the cell nothing is taken apart that would be lost, unless it is given up.
device=$(flashcell attach data --driver "$DRIVER" 2>/dev/null) || fail "attach for giving up"
dd if=/dev/zero of="$device" bs=4k seek=9000 count=1 oflag=direct 2>/dev/null || fail "a write that is not flushed"
cell_kill
waits() { [ "$(of_row state)" = "waiting for the cell" ]; }
within 10 waits
fails_write() { dd if=/dev/zero of="$device" bs=4k seek=9001 count=1 oflag=direct 2>/dev/null && echo "a write was lost and nobody told" >>/tmp/errors; }
fails_write & under_way=$!
flashcell detach data 2>/tmp/detach.err && fail "detached without the cell"
grep -q "without a loss" /tmp/detach.err || fail "detach without the cell: $(cat /tmp/detach.err)"
flashcell detach data --force 2>/tmp/detach.err || fail "detach --force: $(cat /tmp/detach.err)"
grep -q "gave up 4096 bytes" /tmp/detach.err || fail "what was given up: $(cat /tmp/detach.err)"
wait "$under_way"
[ ! -s /tmp/errors ] || fail "$(cat /tmp/errors)"
check "list after --force" "$(flashcell attach --list --json)" "[]"
cell_start
kill -TERM "$cell"
wait "$cell" || fail "the cell did not stop cleanly"
longest=$(cat /tmp/longest)
say "driver $DRIVER: $cells kills of the cell, $drivers of the driver, $acknowledged records kept, longest write with its fsync $((longest / 100)).$(printf %02d $((longest % 100))) s"
exit 0
