//! Physical disk to cell disk to grid disk: label, superblock, catalog, allocation.
