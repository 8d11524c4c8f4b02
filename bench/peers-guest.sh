# Within a guest: PostgreSQL on one block device that $PEER makes of a slow disk and a flash device, through loads, a clean restart and a kill of the
# whole host. Says what the two devices did in each phase. Runs anew at each boot; /root/test/boot says which it is.
cd /root/test || exit
. ./settings
programs=$(echo /usr/lib/postgresql/*/bin)
cell=/root/test/cell
data=/mnt/pg/main
# Of the device that PostgreSQL has; of the flash, what dm-cache keeps its books in.
size_mib=512 books_mib=8
export FLASHCELL_CELL=$cell

say() { echo "<5>guest: $*" >/dev/kmsg; }

fail() {
    say "FAILED: $*"
    for log in output out cell.log postgres.log /run/flashcell/attach/*/log; do
        [ -s "$log" ] && tail -n 15 "$log" | cut -c 1-220 | while IFS= read -r line; do say "    $log: $line"; done
    done
    say "exit 1"
    sleep 1
    poweroff -f
}

must() { "$@" >out 2>&1 || fail "$*: exit $?: $(tail -n 5 out | tr '\n' ' ')"; }

within() { # SECONDS COMMAND...
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || fail "not in time: $*"
        sleep 0.2
    done
}

# In hundredths of a second since the kernel began.
now() {
    local up
    read -r up _ </proc/uptime
    echo "${up/./}"
}

sectors() { blockdev --getsz "$1"; }

# --- peers: make (once), up, down, dirty KiB, cached KiB, clean, and back to write-back

cache_table() { echo "0 $((size_mib * 2048)) cache /dev/mapper/books /dev/mapper/room /dev/mapper/slow 64 1 writeback $1 0"; }
writecache_table() { echo "0 $((size_mib * 2048)) writecache s /dev/mapper/slow /dev/mapper/flash 4096 0"; }
flashcell_serve() {
    : >cell.out
    flashcell serve $cell >cell.out 2>>cell.log &
    server=$!
    within 120 grep -q '^ready ' cell.out
}
# Of all objects, from MB.
flashcell_metric() {
    flashcell cellcli --json -e "list metriccurrent attributes name, metricValue where name = '$1'" |
        sed -n 's/.*"metricValue":\([0-9.]*\).*/\1/p' | awk '{ sum += $1 } END { if (NR) printf "%d\n", sum * 1024 }'
}
bcache_kib() { sed 's/k$/K/' "$1" | numfmt --from=iec | awk '{ printf "%d\n", $1 / 1024 }'; }

peer_make() {
    case $PEER in
    flashcell-*) must flashcell init $cell --disk /dev/mapper/slow --flash /dev/mapper/flash --griddisk data:${size_mib}M:data:write-back ;;
    esac
}

bcache_attach() {
    echo "$BCACHE_SET" >/sys/block/bcache0/bcache/attach || fail "bcache: attach"
    echo writeback >/sys/block/bcache0/bcache/cache_mode || fail "bcache: write-back"
}

peer_up() {
    case $PEER in
    none) device=/dev/mapper/slow ;;
    dm-cache)
        must dmsetup create books --table "0 $((books_mib * 2048)) linear /dev/mapper/flash 0"
        must dmsetup create room --table "0 $(($(sectors /dev/mapper/flash) - books_mib * 2048)) linear /dev/mapper/flash $((books_mib * 2048))"
        must dmsetup create peer --table "$(cache_table smq)"
        device=/dev/mapper/peer
        ;;
    dm-writecache)
        must dmsetup create peer --table "$(writecache_table)"
        device=/dev/mapper/peer
        ;;
    bcache)
        # udev may have been quicker.
        for part in flash slow; do echo /dev/mapper/$part >/sys/fs/bcache/register 2>/dev/null; done
        within 30 test -e /sys/block/bcache0/bcache/state
        device=/dev/bcache0
        within 30 test -e /sys/fs/bcache/"$BCACHE_SET"/congested_read_threshold_us
        [ "$(cat /sys/block/bcache0/bcache/state)" != "no cache" ] || bcache_attach
        # In a guest the flash always looks busy, and bcache would go past it.
        echo 0 >/sys/fs/bcache/"$BCACHE_SET"/congested_read_threshold_us
        echo 0 >/sys/fs/bcache/"$BCACHE_SET"/congested_write_threshold_us
        ;;
    flashcell-*)
        flashcell_serve
        # On a machine that others keep busy the driver does not come up in the time that attach gives it.
        for _ in 1 2 3; do
            device=$(flashcell attach data --driver "${PEER#flashcell-}" 2>out) && return
            flashcell detach data --force >/dev/null 2>&1
        done
        fail "attach: $(cat out)"
        ;;
    esac
}

peer_down() {
    case $PEER in
    dm-cache) must dmsetup remove --retry peer && must dmsetup remove --retry room && must dmsetup remove --retry books ;;
    dm-writecache) must dmsetup remove --retry peer ;;
    bcache)
        echo 1 >/sys/fs/bcache/"$BCACHE_SET"/stop
        echo 1 >/sys/block/bcache0/bcache/stop 2>/dev/null
        within 60 test ! -e /sys/block/bcache0
        within 60 test ! -e /sys/fs/bcache/"$BCACHE_SET"
        ;;
    flashcell-*)
        must flashcell detach data
        kill -TERM $server
        wait $server || fail "the cell did not stop cleanly"
        ;;
    esac
}

dirty() {
    case $PEER in
    none) echo 0 ;;
    dm-cache) dmsetup status peer | awk '{ print $14 * 32 }' ;;
    dm-writecache) dmsetup status peer | awk '{ print ($5 - $6) * 4 }' ;;
    bcache) bcache_kib /sys/block/bcache0/bcache/dirty_data ;;
    flashcell-*) flashcell_metric FC_BY_DIRTY ;;
    esac
}

cached() {
    case $PEER in
    none) echo 0 ;;
    dm-cache) dmsetup status peer | awk '{ split($7, n, "/"); print n[1] * 32 }' ;;
    dm-writecache) dirty ;;
    bcache) echo $(($(sectors /dev/mapper/flash) / 2 * (100 - $(cat /sys/fs/bcache/"$BCACHE_SET"/cache_available_percent)) / 100)) ;;
    flashcell-*) flashcell_metric FC_BY_USED ;;
    esac
}

reload() { # TABLE
    must dmsetup suspend peer && must dmsetup reload peer --table "$1" && must dmsetup resume peer
}

is_clean() { [ "$(dirty)" = 0 ]; }

peer_clean() {
    case $PEER in
    dm-cache) reload "$(cache_table cleaner)" ;;
    dm-writecache) must dmsetup message peer 0 cleaner ;;
    bcache)
        echo 0 >/sys/block/bcache0/bcache/writeback_percent
        echo 0 >/sys/block/bcache0/bcache/writeback_delay
        ;;
    flashcell-*) must flashcell cellcli -e "alter griddisk data flush" ;;
    esac
    within 300 is_clean
}

peer_back() {
    case $PEER in
    dm-cache) reload "$(cache_table smq)" ;;
    dm-writecache) reload "$(writecache_table)" ;;
    bcache)
        echo 10 >/sys/block/bcache0/bcache/writeback_percent
        echo 30 >/sys/block/bcache0/bcache/writeback_delay
        ;;
    flashcell-*) must flashcell cellcli -e "alter griddisk data cancel flush" ;;
    esac
}

# Nothing of the load is on flash any more.
peer_empty() {
    sync
    must umount /mnt/pg
    peer_clean
    case $PEER in
    dm-*)
        peer_down
        must dd if=/dev/zero of=/dev/mapper/flash bs=1M count=$books_mib oflag=direct
        peer_up
        ;;
    bcache)
        echo 1 >/sys/block/bcache0/bcache/detach
        within 60 grep -q "no cache" /sys/block/bcache0/bcache/state
        bcache_attach
        peer_back
        ;;
    flashcell-*)
        must flashcell cellcli -e "drop flashcache"
        must flashcell cellcli -e "create flashcache all"
        peer_back
        ;;
    esac
    must mount -o noatime $device /mnt/pg
}

# --- phases

# Of the virtio disks below: reads, KiB read, writes, KiB written, flushes of slow and flash; then busy and all of the processors' time.
counters() {
    awk '{ printf "%d %d %d %d %d ", $1, $3 / 2, $5, $7 / 2, $16 }' /sys/block/vdb/stat /sys/block/vdc/stat
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat
}

begin() {
    before=$(counters)
    began=$(now)
}

ended() { # PHASE [KEY=VALUE...]
    local took=$(($(now) - began)) line
    line=$(echo "$before $(counters)" | awk '{
        split("slow_reads slow_read_kib slow_writes slow_write_kib slow_flushes flash_reads flash_read_kib flash_writes flash_write_kib flash_flushes", name, " ")
        for (n = 1; n <= 10; n++) printf "%s=%d ", name[n], $(n + 12) - $n
        printf "busy=%.2f", ($23 - $11) / ($24 - $12) }')
    say "phase $1 cs=$took $line dirty_kib=$(dirty) cached_kib=$(cached) ${*:2}"
}

postgres() { runuser -u postgres -- env -C / "$@"; }

# Its memory, page cache included, is that of its scope.
database_start() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
    systemd-run -q --scope --slice=database.slice -p MemoryMax="${MEMORY_MIB}M" -- runuser -u postgres -- env -C / \
        "$programs/pg_ctl" -D $data -l /tmp/postgres.log -w -t 300 start >out 2>&1 || fail "postgres: $(cat out /tmp/postgres.log)"
}

database_stop() { must postgres "$programs/pg_ctl" -D $data -w -t 300 -m fast stop; }

# The same accounts each time, each pass with nothing of them in memory.
check_set() { # PHASE
    database_start
    begin
    must postgres "$programs/pgbench" -n -S -M prepared -c "$CLIENTS" -j 1 -t $((SELECTS / CLIENTS)) --random-seed=42 postgres
    ended "$1" "transactions=$SELECTS tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' out)"
    database_stop
}

tpcb() { # PHASE
    database_start
    begin
    must postgres "$programs/pgbench" -n -M prepared -c "$CLIENTS" -j 1 -t $((WRITES / CLIENTS)) --random-seed=7 postgres
    ended "$1" "transactions=$WRITES tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' out)"
    database_stop
}

clean() { # PHASE
    sync
    local from
    from=$(dirty)
    begin
    peer_clean
    ended "$1" "from_kib=$from"
}

devices() {
    must dmsetup create slow --table "0 $(sectors /dev/vdb) delay /dev/vdb 0 $DELAY_MS"
    must dmsetup create flash --table "0 $(sectors /dev/vdc) linear /dev/vdc 0"
    for module in bcache dm-cache dm-writecache nbd ublk_drv; do modprobe $module 2>/dev/null; done
}

make_database() {
    must mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $device
    must mount -o noatime $device /mnt/pg
    # The cluster that the package of PostgreSQL has made: initdb takes half a minute here.
    must cp -a /var/lib/postgresql/*/main $data
    echo "local all all trust" >$data/pg_hba.conf
    cat >$data/postgresql.conf <<END
listen_addresses = ''
unix_socket_directories = '/var/run/postgresql'
shared_buffers = 16MB
max_wal_size = 96MB
min_wal_size = 48MB
checkpoint_timeout = 10min
autovacuum = off
END
    chown postgres:postgres $data/*.conf
    database_start
    begin
    must postgres "$programs/pgbench" -i -q -s "$SCALE" postgres
    must postgres psql -c checkpoint
    database_stop
    sync
    ended load
}

first_boot() {
    mkdir -p /mnt/pg
    peer_make
    peer_up
    make_database
    [ "$PEER" = none ] || peer_empty
    for pass in 1 2 3; do check_set "pass$pass"; done
    tpcb tpcb
    check_set before-restart
    must umount /mnt/pg
    begin
    peer_down
    ended down
    begin
    peer_up
    ended up
    must mount -o noatime $device /mnt/pg
    check_set after-restart
    [ "$PEER" = none ] || { clean clean && peer_back; }
    # The host ends under a load: what a device has acknowledged is there.
    database_start
    postgres "$programs/pgbench" -n -M prepared -c "$CLIENTS" -j 1 -T 600 postgres >/dev/null 2>&1 &
    sleep "$KILL_AFTER"
    say "kill dirty_kib=$(dirty) cached_kib=$(cached)"
    sleep 1
    echo b >/proc/sysrq-trigger
    sleep 60
}

second_boot() {
    begin
    peer_up
    ended up-after-kill
    begin
    must mount -o noatime $device /mnt/pg
    rm -f $data/postmaster.pid
    database_start
    ended recovery
    database_stop
    check_set after-kill
    [ "$PEER" = none ] || clean clean-after-kill
    database_start
    must postgres psql -X -At -c "select (select sum(abalance) from pgbench_accounts) = all (select sum(bbalance) from pgbench_branches union all
        select sum(tbalance) from pgbench_tellers union all select coalesce(sum(delta), 0) from pgbench_history)"
    [ "$(cat out)" = t ] || fail "the balances differ after the kill: $(cat out)"
    database_stop
    must umount /mnt/pg
    peer_down
    say "exit 0"
    sleep 1
    poweroff -f
}

(
    sleep "$SECONDS_MAX"
    echo w >/proc/sysrq-trigger
    fail "not done in $SECONDS_MAX s"
) &
number=$(($(cat boot 2>/dev/null || echo 0) + 1))
echo $number >boot
sync
# The script lies where PostgreSQL may not look.
ln -sf /tmp/postgres.log postgres.log
install -m 755 flashcell.bin /usr/bin/flashcell
systemctl disable postgresql
systemctl stop postgresql 'postgresql@*'
devices
if [ $number = 1 ]; then first_boot; else second_boot; fi
