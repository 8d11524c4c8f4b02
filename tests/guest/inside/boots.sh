# What a boot finds, and how the shutdown before it went.

check_boot() { # BOOT
    check "PostgreSQL" "$(property postgresql@$version-main ActiveState)" active
    check "rows" "$(sql 'select boot, count(*) from rows group by 1 order by 1' | tr '\n' ' ')" "$(for ((n = 1; n < $1; n++)); do printf '%s|1000 ' $n; done)"
    add_rows "$1"
    check "a mount of attach" "$(findmnt -n -o SOURCE /mnt/files)" "$(readlink -f /dev/flashcell/db/files)"
    check_shutdown
    check_order
    say "boot $1, slowest: $(systemd-analyze blame --no-pager | head -n 6 | tr -s ' \n' ' ')"
    say "boot $1: PostgreSQL up with its rows; the shutdown before was clean"
}
