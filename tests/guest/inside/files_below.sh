# Files on what is stacked above an attached grid disk: a partition with a volume in two pieces on it, the second before the first, and a file system in
# an image on that. What is pinned and cached by name must be the places where the files lie on the grid disk.
. /lib.sh

flashcell init "$FLASHCELL_CELL" --disk 128M --flash 64M --griddisk data:64M:data:write-through >/dev/null || fail init
cell_start
device=$(flashcell attach data --driver nbd 2>/tmp/attach.err) || fail "attach: $(cat /tmp/attach.err)"

# Sectors: 6144 of the volume at 65536, then 26624 at 8192.
printf '0 6144 linear %s 65536\n6144 26624 linear %s 8192\n' "$device" "$device" >/tmp/table
dmsetup create --noudevsync vg-lv /tmp/table || fail "dmsetup create"
/sbin/mkfs.ext4 -q -b 4096 -O ^has_journal /dev/dm-0 || fail mkfs
mkdir /tmp/volume
mount -t ext4 /dev/dm-0 /tmp/volume || fail mount

# Every page of a file says which it is.
pages() { # WORD COUNT: a word has three letters
    awk -v word="$1" -v count="$2" 'BEGIN { pad = sprintf("%4082s", ""); for (n = 0; n < count; n++) printf "%s %08d %s\n", word, n, pad }'
}
pages one 1800 >/tmp/volume/one || fail "write a file"
pages two 300 >/tmp/volume/two || fail "write another file"
sync

# What the pins name of the grid disk, read past the file system: how many pages of a file, each counted once, how many pages in all, and how many
# ranges there are of either piece of the volume.
pinned() { # WORD
    flashcell cellcli --json -e "list pin attributes offset, length" >/tmp/pins || fail "list pin"
    # OFFSET LENGTH, whichever of them comes first.
    tr ',{}' '\n' </tmp/pins | awk -F'[": ]+' '$2 == "offset" { o = $3 } $2 == "length" { l = $3 } o != "" && l != "" { print o, l; o = l = "" }' >/tmp/ranges
    awk '{ if ($1 >= 32 * 1048576) first++; else second++ } END { print first + 0, second + 0 }' /tmp/ranges >/tmp/pieces
    while read -r offset length; do
        dd if="$device" bs=4096 skip=$((offset / 4096)) count=$((length / 4096)) iflag=direct 2>/dev/null
    done </tmp/ranges | awk -v word="$1" '$1 == word && !seen[$2]++ { n++ } END { print n + 0, NR }'
}
flashcell pin /tmp/volume/one keep >/tmp/pin.out 2>&1 || fail "pin: $(cat /tmp/pin.out)"
check "pages pinned" "$(pinned one)" "1800 1800"
say "ranges in the first piece of the volume and in the second: $(cat /tmp/pieces)"
case $(cat /tmp/pieces) in 0\ * | *\ 0) fail "the file lies in one piece of the volume: this shows nothing" ;; esac

# Of what is pinned all is on flash, by the cell's word and by name.
flashcell contents --json /tmp/volume/one >/tmp/contents 2>/tmp/contents.err || fail "contents: $(cat /tmp/contents.err)"
say "contents: $(tr -d '\n ' </tmp/contents)"

# An image on that volume, and a file system in it.
dd if=/dev/zero of=/tmp/volume/image bs=1M count=3 2>/dev/null
/sbin/mkfs.ext4 -q -b 4096 -O ^has_journal -F /tmp/volume/image || fail "mkfs of the image"
mkdir /tmp/image
mount -t ext4 -o loop /tmp/volume/image /tmp/image || fail "mount the image"
pages six 100 >/tmp/image/six || fail "write a file in the image"
sync
flashcell pin /tmp/volume/one off >/tmp/pin.out 2>&1 || fail "pin off: $(cat /tmp/pin.out)"
flashcell pin /tmp/image/six keep >/tmp/pin.out 2>&1 || fail "pin in the image: $(cat /tmp/pin.out)"
sync
check "pages pinned of the image" "$(pinned six)" "100 100"

# A volume in stripes is not followed, and that is told.
umount /tmp/image
umount /tmp/volume
dmsetup remove --noudevsync vg-lv || fail "dmsetup remove"
printf '0 8192 striped 2 128 %s 0 %s 65536\n' "$device" "$device" | dmsetup create --noudevsync vg-lv || fail "dmsetup create of stripes"
/sbin/mkfs.ext4 -q -b 4096 -O ^has_journal /dev/dm-0 || fail "mkfs on stripes"
mount -t ext4 /dev/dm-0 /tmp/volume || fail "mount stripes"
pages two 10 >/tmp/volume/two
sync
flashcell pin /tmp/volume/two keep >/tmp/pin.out 2>&1 && fail "a file on stripes was pinned: $(cat /tmp/pin.out)"
grep -q "dm-0 is made of other devices in a way that is not followed: striped" /tmp/pin.out || fail "stripes: $(cat /tmp/pin.out)"
umount /tmp/volume
dmsetup remove --noudevsync vg-lv
flashcell detach data 2>/dev/null || fail detach
kill -TERM "$cell"
wait "$cell" || fail "the cell did not stop cleanly"
say "files on a volume in two pieces, and in an image on it: the pages pinned are theirs"
exit 0
