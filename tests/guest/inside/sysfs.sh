# Tells what `flashcell doctor` reads of each block device: a line "sysfs PATH=VALUE" for each file.
. /lib.sh

raid() { # A mirror of two disks, without a program for it.
    echo md_pair >/sys/module/md_mod/parameters/new_array || return
    cd /sys/block/md_pair/md || return
    echo none >metadata_version
    echo raid1 >level
    echo 2 >raid_disks
    echo 65536 >component_size
    slot=0
    for leg in "$@"; do
        cat "/sys/block/$leg/dev" >new_dev
        echo 65536 >"dev-$leg/size"
        echo "$slot" >"dev-$leg/slot"
        slot=$((slot + 1))
    done
    echo active >array_state || say "no md: $(dmesg | tail -n 3)"
    cd /
}

# Disks are named in the order they are found in; what they were called on the command line of QEMU is in one of these.
mirrored=
for disk in /sys/block/*; do
    name=${disk##*/}
    for file in "$disk/serial" "$disk/device/serial" "$disk/device/model"; do
        known=$(tr -d ' ' <"$file" 2>/dev/null)
        case $known in known-*) break ;; esac
    done
    case $known in known-*) say "known $name $known" ;; *) continue ;; esac
    case $known in
    known-00 | known-01) mirrored="$mirrored $name" ;;
    known-02) echo "0 65536 linear /dev/$name 2048" | dmsetup create --noudevsync --noudevrules linear || say "no dm-linear" ;;
    esac
done
# shellcheck disable=SC2086
raid $mirrored
for disk in /sys/block/*; do
    case $disk in */loop* | */nbd* | */ram* | */zram* | */ublk*) continue ;; esac
    for file in "$disk"/size "$disk"/ro "$disk"/removable "$disk"/alignment_offset "$disk"/queue/* "$disk"/*/partition "$disk"/*/start "$disk"/*/alignment_offset "$disk"/*/size "$disk"/slaves/*/dev; do
        case $file in
        */size | */ro | */removable | */alignment_offset | */partition | */start | */slaves/*/dev | */queue/logical_block_size | */queue/physical_block_size) ;;
        */queue/rotational | */queue/scheduler | */queue/write_cache | */queue/fua | */queue/discard_max_bytes | */queue/discard_granularity) ;;
        *) continue ;;
        esac
        [ -f "$file" ] && say "sysfs ${file#/}=$(cat "$file")"
    done
done
exit 0
