# Removal while something is attached is refused; removed and purged, what is in the cells is still there.

removal() {
    dpkg -r flashcell >out 2>&1 && fail "removed while grid disks are attached"
    grep -q "grid disks are attached to this host" out || fail "the reason: $(cat out)"
    check "after a refused removal" "$(property flashcell@db ActiveState) $(property mnt-pgdata.mount ActiveState)" "active active"
    check "PostgreSQL after a refused removal" "$(sql 'select count(*) from rows where boot = 1')" 1000

    # To stop what is attached takes what is on it along.
    must systemctl disable --now flashcell-attach@pgdata flashcell-attach@pgwal flashcell-attach@files
    check "what stood on it" "$(property postgresql@$version-main ActiveState) $(property mnt-pgdata.mount ActiveState)" "inactive inactive"
    must dpkg -P flashcell
    check "the cell after the purge" "$(property flashcell@db ActiveState)" inactive
    [ -e $cell/cell.toml ] || fail "the purge took the cell away"
    check "what the purge leaves" "$(find /etc /usr /run -path '*flashcell*' -not -path '/etc/systemd/*' -not -path '/run/udev/*' -not -path '/run/systemd/*')" ""
    check "dangling links" "$(find /etc/systemd/system -xtype l)" ""

    must dpkg -i this.deb
    must systemctl enable --now flashcell@db
    attach_all
    must systemctl start postgresql@$version-main
    within 60 sql "select 1"
    check "rows after the purge" "$(sql 'select count(*) from rows where boot = 1')" 1000
    say "removal was refused while attached; after a purge the rows are there"
}
