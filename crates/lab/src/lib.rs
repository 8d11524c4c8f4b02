//! Workloads, experiments and reports.
