//! Findings of whole checks, against e2fsck's verdicts.

mod claims;
mod edits;
mod exceeding;
mod exceptions;
mod findings;
mod flips;
mod growing;
mod hidden;
mod images;
mod inspecting;
mod kept;
mod losses;
mod metadata;
mod mutants;
mod oracle;
mod outside;
mod repairs;
mod shrinking;
mod stepwise;
mod substitutes;
mod switching;
mod trims;
mod tuning;
