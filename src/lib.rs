//! CoRa: compile operators on ragged tensors once, run them on any batch of lengths.
