# Upgrades under load, a downgrade over formats that have moved, needrestart, and a disk that hangs.

# $STEPS names some of them, for who looks into one.
later() {
    local step
    for step in ${STEPS:-upgrade downgrade needs_no_restart dead_driver hangs removal}; do
        $step
    done
}

installed() { dpkg-query -W -f '${Version} ${db:Status-Abbrev}' flashcell 2>/dev/null; }

upgrade() {
    local bench=/usr/lib/postgresql/$version/bin/pgbench old new longest
    old=$(property flashcell@db MainPID)
    mkdir -m 777 load
    chmod 755 /root
    must runuser -u postgres -- $bench -i -q -s 1 postgres
    (cd load && runuser -u postgres -- $bench -c 2 -T "$LOAD_SECONDS" -l --max-tries=1 postgres >told 2>errors; echo $? >exit) &
    local load=$!
    sleep 5
    must dpkg -i next.deb
    new=$(property flashcell@db MainPID)
    wait $load
    check "pgbench" "$(cat load/exit): $(grep -v '^pgbench (\|starting vacuum' load/errors)" "0: "
    grep -q "number of failed transactions: 0 " load/told || fail "pgbench: $(cat load/told)"
    [ "$old" != "$new" ] || fail "the cell still is process $old"
    check "the program of the cell" "$(readlink /proc/$new/exe)" /usr/bin/flashcell
    check "what is installed" "$(installed)" "$(dpkg-deb -f next.deb Version) ii "
    longest=$(awk '$3 > most { most = $3 } END { printf "%.2f", most / 1e6 }' load/pgbench_log.*)
    say "upgraded under load: $(awk 'END { print NR }' load/pgbench_log.*) transactions, none failed, the longest took $longest s"
}

downgrade() {
    local before=$(installed) pid reason
    must dpkg -i moved.deb
    pid=$(property flashcell@db MainPID)
    dpkg -i next.deb >out 2>&1 && fail "a downgrade over formats that have moved: $(cat out)"
    grep -q "/var/lib/flashcell/db may be of format 1000, .* the newest that this package serves is 1" out || fail "the reason: $(cat out)"
    reason=$(grep 'may be of format' out)
    check "what is installed then" "$(installed)" "$(dpkg-deb -f moved.deb Version) ii "
    check "the cell after a refused downgrade" "$(property flashcell@db ActiveState) $(property flashcell@db MainPID)" "active $pid"
    FLASHCELL_DOWNGRADE=force must dpkg -i next.deb
    check "a forced downgrade" "$(installed)" "$before"
    # Where no format has moved there is nothing to refuse.
    must dpkg -i this.deb
    check "PostgreSQL after downgrades" "$(sql 'select count(*) from rows where boot = 1')" 1000
    say "a downgrade over a moved format was refused: $reason"
}

# Keeper and drivers of what is attached run the program of the first package, which is gone.
needs_no_restart() {
    local cell=$(property flashcell@db MainPID) keepers
    keepers=$(pgrep -d ' ' -f attach-keeper)
    readlink /proc/${keepers%% *}/exe | grep -q deleted || fail "the keeper runs $(readlink /proc/${keepers%% *}/exe)"
    needrestart -v -r a -l >out 2>&1 || fail "needrestart: $(cat out)"
    grep -q flashcell-attach@ out || fail "needrestart does not see what is attached: $(cat out)"
    check "after needrestart" "$(property flashcell@db MainPID); $(pgrep -d ' ' -f attach-keeper)" "$cell; $keepers"
    check "PostgreSQL after needrestart" "$(sql 'select count(*) from rows where boot = 1')" 1000
    say "needrestart left cell and attachments alone"
}

# What udev looks at anew while the driver is dead stays what it is: systemd would unmount what is on a device that is gone.
dead_driver() {
    local row driver
    for row in pgdata pgwal; do
        driver=$(pgrep -f "attach-driver /run/flashcell/attach/$row-")
        kill -9 $driver
        must udevadm trigger --settle "$(readlink -f /dev/flashcell/db/$row)"
    done
    check "PostgreSQL after the death of the drivers" "$(sql 'select count(*) from rows where boot = 1')" 1000
    sleep 2
    check "mounts after the death of the drivers" "$(property mnt-pgdata.mount ActiveState) $(property mnt-pgwal.mount ActiveState)" "active active"
    must udevadm trigger --settle /dev/flashcell/db/pgdata /dev/flashcell/db/pgwal
    add_rows 0
    say "drivers died and udev looked: still mounted"
}

# Of a cell of its own, on a device that can be stopped.
hangs() {
    local dir=/var/lib/flashcell/stall pid
    echo 'ENV{DM_NAME}=="stall", GROUP="flashcell", MODE="0660"' >/etc/udev/rules.d/66-stall.rules
    must udevadm control --reload
    must dmsetup create stall --table "0 $(blockdev --getsz /dev/vdd) linear /dev/vdd 0"
    must udevadm settle
    must runuser -u flashcell -- flashcell init $dir --disk /dev/mapper/stall --griddisk data:64M
    sed -i 's/^requests = .*/requests = "32M"/; s/^work = .*/work = "16M"/' $dir/cell.toml
    mkdir /etc/systemd/system/flashcell@stall.service.d
    printf '[Service]\nWatchdogSec=6\n' >/etc/systemd/system/flashcell@stall.service.d/watchdog.conf
    systemctl daemon-reload
    must systemctl start flashcell@stall
    printf 'CELL=%s\nGRIDDISK=data\n' $dir >/etc/flashcell/attach/stall
    must systemctl start flashcell-attach@stall
    pid=$(property flashcell@stall MainPID)
    must dmsetup suspend --nolockfs --noflush stall
    dd if=/dev/flashcell/stall/data of=/dev/null bs=4k count=1 skip=5000 iflag=direct 2>/dev/null &
    local reader=$!
    sleep 20
    kill -0 $reader || fail "a read of a disk that hangs has ended"
    check "a cell whose disk hangs" "$(property flashcell@stall ActiveState) $(property flashcell@stall MainPID) $(property flashcell@stall NRestarts)" "active $pid 0"
    must dmsetup resume stall
    wait $reader || fail "the read of the disk that hung"
    # A process that hangs is another matter.
    kill -STOP $pid
    restarted() { [ "$(property flashcell@stall NRestarts)" = 1 ] && [ "$(property flashcell@stall ActiveState)" = active ]; }
    within 90 restarted
    journalctl -u flashcell@stall -o cat | grep -q "Watchdog timeout" || fail "restarted without the watchdog"
    # One after the other: nothing orders the two but a target that goes down at a shutdown alone.
    must systemctl stop flashcell-attach@stall
    must systemctl stop flashcell@stall
    must dmsetup remove stall
    rm -rf $dir
    say "a disk that hung for 20 s did not trip a watchdog of 6 s, a process that hung did"
}
