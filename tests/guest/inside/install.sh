# Installs a cell and puts PostgreSQL on it, line by line as docs/guide/install.md has it.

install_cell() {
    must dpkg -i this.deb
    check "the user" "$(id -nG flashcell)" flashcell
    check "the cells' directory" "$(stat -c '%U:%G %a' /var/lib/flashcell)" "flashcell:flashcell 750"
    must sgdisk -n 1 -c 1:flashcell-disk0 /dev/vdb
    must sgdisk -n 1 -c 1:flashcell-flash0 /dev/vdc
    must udevadm settle
    for device in disk0 flash0; do
        check "$device" "$(stat -L -c '%G %a' /dev/disk/by-partlabel/flashcell-$device)" "flashcell 660"
    done
    check "a device of nobody's" "$(stat -c %G /dev/vdd)" disk

    must runuser -u flashcell -- flashcell init $cell \
        --disk /dev/disk/by-partlabel/flashcell-disk0 --flash /dev/disk/by-partlabel/flashcell-flash0 \
        --griddisk pgdata:512M:data:write-back --griddisk pgwal:128M:redo --griddisk files:64M
    must systemctl enable --now flashcell@db
    case $(property flashcell@db StatusText) in "serving 3 grid disks") ;; *) fail "status: $(property flashcell@db StatusText)" ;; esac
    attach_all
    for name in pgdata pgwal; do
        must mkfs.ext4 -q /dev/flashcell/db/$name
        mkdir /mnt/$name
        echo "/dev/flashcell/db/$name /mnt/$name ext4 noatime,_netdev,x-systemd.requires=flashcell-attach@$name.service 0 2" >>/etc/fstab
    done
    systemctl daemon-reload
    must systemctl start mnt-pgdata.mount mnt-pgwal.mount
    say "installed after $(up) s: $(lsblk -no NAME,SIZE,MOUNTPOINT $(readlink -f /dev/flashcell/db/pgdata))"

    # The cluster that the package of PostgreSQL has made moves onto them.
    must systemctl stop postgresql@$version-main
    install -d -o postgres -g postgres -m 700 $data/main /mnt/pgwal/main
    must cp -a $base/. $data/main
    mv $data/main/pg_wal /mnt/pgwal/main/pg_wal
    ln -s /mnt/pgwal/main/pg_wal $data/main/pg_wal
    rm -rf $base
    must pg_conftool $version main set data_directory $data/main
    mkdir -p /etc/systemd/system/postgresql@$version-main.service.d
    printf '[Unit]\nRequiresMountsFor=/mnt/pgdata /mnt/pgwal\n' >/etc/systemd/system/postgresql@$version-main.service.d/flashcell.conf
    systemctl daemon-reload
    must systemctl start postgresql
    within 60 sql "select 1"
    sql "create table rows (boot int, n int, filler text)" >/dev/null || fail "create table"
    add_rows 1
    say "PostgreSQL on grid disks after $(up) s; in memory: $(ps -C flashcell -o rss=,args= | awk '{ print int($1 / 1024) " MiB", $3 }' | tr '\n' ' ')"
}

# Over the kernel's NBD client, over FUSE, and with a mount point that fstab knows nothing of.
attach_all() {
    local name
    printf 'CELL=%s\nGRIDDISK=pgdata\nOPTIONS=--fs\n' $cell >/etc/flashcell/attach/pgdata
    printf 'CELL=%s\nGRIDDISK=pgwal\nOPTIONS=--fs --driver fuse\n' $cell >/etc/flashcell/attach/pgwal
    printf 'CELL=%s\nGRIDDISK=files\nMOUNTPOINT=/mnt/files\nOPTIONS=--fs --mkfs ext4\n' $cell >/etc/flashcell/attach/files
    mkdir -p /mnt/files
    for name in pgdata pgwal files; do
        must systemctl enable --now flashcell-attach@$name
    done
}

add_rows() { # BOOT
    sql "insert into rows select $1, n, repeat('x', 200) from generate_series(1, 1000) n" >/dev/null || fail "insert"
}
