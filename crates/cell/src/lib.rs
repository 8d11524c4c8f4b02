//! One cell: request path, range locks, metrics, catalog changes.
