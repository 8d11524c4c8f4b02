//! What the cell server and its host have in use.
//!
//! Never keeps a value: read when asked.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, metric, milli_percent};

/// The metrics of it.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        Cell,
        "CL_CPUT_CS",
        MilliPercent,
        "processor time of the cell server, of one processor",
        Formula::ShareOfTime("CL_CPU_TM_CS")
    ),
    metric!(
        Cell,
        "CL_CPU_TM_CS",
        Nanoseconds,
        "processor time of the cell server",
        Formula::Counter(Reading::Cell(|u| u.cpu_ns))
    ),
    metric!(
        Cell,
        "CL_MEMUT_CS",
        MilliPercent,
        "memory of the host that the cell server holds",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.resident_bytes, u.host_memory_bytes)))
    ),
    metric!(
        Cell,
        "CL_RUNQ",
        Milli,
        "processes that run or wait to run, in the mean over a minute",
        Formula::Gauge(Reading::Cell(|u| u.load_milli))
    ),
    metric!(
        Cell,
        "CL_VIRTMEM_CS",
        Bytes,
        "address space of the cell server",
        Formula::Gauge(Reading::Cell(|u| u.virtual_bytes))
    ),
    metric!(
        Cell,
        "CL_CPUT",
        MilliPercent,
        "processor time of the host in use, of all its processors",
        Formula::ShareOfTime("CL_CPU_TM")
    ),
    metric!(
        Cell,
        "CL_CPU_TM",
        Nanoseconds,
        "processor time of the host in use, in the mean of its processors",
        Formula::Counter(Reading::Cell(|u| u.host_cpu_ns))
    ),
    metric!(
        Cell,
        "CL_MEMUT",
        MilliPercent,
        "memory of the host in use: what is not to be had without swapping",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.host_memory_used_bytes, u.host_memory_bytes)))
    ),
    metric!(
        Cell,
        "CL_SWAP_USAGE",
        MilliPercent,
        "swap space of the host in use",
        Formula::Gauge(Reading::Cell(|u| milli_percent(u.host_swap_used_bytes, u.host_swap_bytes)))
    ),
    metric!(
        Cell,
        "N_NIC_RCV",
        Bytes,
        "bytes the host's network interfaces have received",
        Formula::Counter(Reading::Cell(|u| u.nic_received_bytes))
    ),
    metric!(
        Cell,
        "N_NIC_KB_RCV_SEC",
        Bytes,
        "bytes the host's network interfaces received, a second",
        Formula::PerSecond("N_NIC_RCV")
    ),
    metric!(
        Cell,
        "N_NIC_TRANS",
        Bytes,
        "bytes the host's network interfaces have sent",
        Formula::Counter(Reading::Cell(|u| u.nic_sent_bytes))
    ),
    metric!(
        Cell,
        "N_NIC_KB_TRANS_SEC",
        Bytes,
        "bytes the host's network interfaces sent, a second",
        Formula::PerSecond("N_NIC_TRANS")
    ),
];
