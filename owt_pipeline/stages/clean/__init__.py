"""Repair and filtering of text: pure functions over one document at a time."""
