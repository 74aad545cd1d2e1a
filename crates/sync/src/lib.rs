//! Locks, atomics and concurrent structures of Extant, behind safe interfaces.
