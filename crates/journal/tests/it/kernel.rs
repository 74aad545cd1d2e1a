//! Other people's recovery.
