//! The comment lines of a fresh cell.toml: every key there is.

/// What a fresh file begins with.
pub(super) const HEAD: &str = "\
# A Flashcell cell: where its devices are and how it is served. What is on the devices (grid disks, caching, names) is
# in their own catalog; change that with `flashcell cellcli`.
#
# start_deadline_s = 30: so long a device may take to answer one request while the cell starts; then the start goes on without it.
# stop_deadline_s = 60: so long a stop may take.
# [listen]       nbd, admin: lists of \"unix:PATH\" and \"tcp:HOST[:PORT]\". TCP is TLS: `flashcell trust` makes the certificates
#                first. nbd takes \"tcp-plain:HOST[:PORT]\" as well: no TLS and no login, open to whoever reaches it.
# [admin]        group = \"dba\": its members administer the cell over the unix socket, as root and the user it is served as
#                do; everybody else may look. trust = \"trust\": the directory of the certificates.
# [nbd]          default = \"data\": the grid disk of clients that name none; unless stated the only one there is.
# [memory]       requests, work, staging (for each flash device of the cache); index = \"8G\" limits what the index of the
#                cache takes, all in all: a cache created after that has coarser blocks if need be.
# [flash_cache]  block and segment (when a cache is created), soft_limit_ms, hard_limit_ms; keep_unused (\"24h\": KEEP
#                data unused for so long counts as DEFAULT data); stamps_every (\"60s\": flash that is put back to an
#                older moment than that is found out at the next start); busy_to_disk = true: while flash is busier
#                than the disk, the disk serves a share of the hits; sequential_cutoff = \"4M\": more than that in
#                a row is a scan, which pushes nothing out of the cache unless it comes back and fits (0: never); journal = \"64M\" of a grid disk put into write-back-ordered
#                (1/64 of it unless stated); feed_rate = \"32M\" a second, feed_boost and noprefetch for grid disks with
#                fillStrategy=feed. What may be written to each flash drive, no limit unless stated:
#                drive_writes_per_day = \"10\" and drive_capacity = \"700GB\", or lifetime = \"5y\" and
#                rated_writes = \"17PB\" (GB is 10^9 bytes, GiB is 2^30); endurance_burst_days = 1.
# [history]      days = 7 and size = \"256M\" of metric history in history.redb; ALTER CELL metricHistoryDays goes before days.
# [[alerts.command]]  argv = [\"/usr/local/bin/page\", \"--dba\"], timeout_s = 30: run for each alert (no shell), the alert in its
#                environment (FLASHCELL_ALERT_*) and as JSON on its standard input.
# [[alerts.webhook]]  url = \"https://alerts.example/cell\", timeout_s = 10, retries = 3, ca = \"ca.pem\": each alert is sent there.
# [alerts.mail]  user and password_file of the mail server that ALTER CELL smtpServer names; ca, timeout_s, retries.
# [[device]]     path: a file, a block device, nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH;
#                kind = \"disk\" | \"flash\"; if need be: required = true | false, class = \"durable\" | \"ephemeral\",
#                page = \"4K\", direct = \"auto\" | \"always\" | \"never\", model = \"sata-7200\" (an emulated medium),
#                sparse = true (an image that takes space as it needs it, and fails when its file system is full).
#                metadata: of a volume that `flashcell adopt` has adopted, written by that command alone.

";
